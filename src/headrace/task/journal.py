"""The journal of one attempt: which steps earlier attempts have finished, and which call each of them answers."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.model.gate import NewGate, Wait
from headrace.model.job import BatchId
from headrace.model.outcome import Dead
from headrace.model.step import MAX_JOURNAL, MAX_STEP_NAME, MAX_STEP_VALUE, MAX_STEPS, Step
from headrace.task.codec.hooks import enc_hook

if TYPE_CHECKING:
    from asyncio import Lock

_encode = msgspec.msgpack.Encoder(enc_hook=enc_hook, order="deterministic").encode
_UNSTORABLE = b"?"
_DIGEST_BYTES = 16


class StepChanged(Dead, HeadraceError):
    """The journal of a job does not fit the code of its task any more. The job is dead, and nothing ran twice."""

    code = "step_changed"


class StepTooLarge(Dead, HeadraceError):
    """A job has too many steps, or a step's result is too large. The job is dead."""

    code = "step_too_large"


class Suspension(NamedTuple):
    """Why a task gives its slot back, and when its job runs again: at a time, or when the first of its gates has opened."""

    note: str
    until: datetime | None = None
    gates: tuple[NewGate, ...] = ()
    """Gates to make, if they do not exist."""
    waits: tuple[Wait, ...] = ()


def joined(waits: Sequence[Suspension]) -> Suspension:
    """One suspension for all that the coroutines of a task wait for. It ends with the first of them."""
    first = min(waits, key=lambda one: (one.until is None, one.until))
    return Suspension(
        first.note,
        first.until,
        tuple({gate.id: gate for one in waits for gate in one.gates}.values()),
        tuple(dict.fromkeys(wait for one in waits for wait in one.waits)),
    )


class Suspended(BaseException):
    """Ends an attempt in a thread or a process whose task waits. The job runs again when the wait is over."""

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(suspension.note)
        self.suspension = suspension


class Ticket(NamedTuple):
    """A call of a step, numbered when it was called."""

    name: str
    number: int
    digest: bytes


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Tells calls with different arguments apart. Arguments that cannot be stored, such as a connection, do not count."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, value in (*((b"", value) for value in args), *((key.encode(), kwargs[key]) for key in sorted(kwargs))):
        try:
            data = _encode(value)
        except Exception:  # noqa: BLE001  # a user's type may do anything while it is encoded
            data = _UNSTORABLE
        for part in (name, data):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function's steps. It has no module, so that a function may move to another one."""
    inner = getattr(function, "func", function)  # a functools.partial has no name of its own
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


class Journal:
    """Finds the step that answers a call, by its name and arguments. Several threads of one task may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, dict[int, Step]] = {}
        """Finished steps that have answered no call of this attempt, by name and number."""
        self._calls: Counter[str] = Counter()
        self._numbers: dict[str, set[int]] = {}
        """The numbers that are taken, by name."""
        self._functions: dict[str, object] = {}
        self._count = 0
        self._bytes = 0
        self.undos: list[BatchId] = []
        """The undo jobs that this attempt has registered, by their batches, in their order."""
        self.undoing: Lock | None = None
        """Held while an undo job is registered. Made by the first, because a program without any does without asyncio."""
        self.undoing_sync = threading.Lock()

    def load(self, steps: Iterable[Step]) -> None:
        """Take over what earlier attempts have finished. Before the first `find`."""
        with self._lock:
            for step in steps:
                self._left.setdefault(step.name, {})[step.number] = step
                self._note(step)

    def call(self, name: str, digest: bytes, function: object = None) -> Ticket:
        """Number a call. `function` is what is called: two different ones must not share a name."""
        if len(name) > MAX_STEP_NAME:
            raise ConfigError(f"the name and key of a step have at most {MAX_STEP_NAME} characters: {name[:60]}…")
        with self._lock:
            if self._functions.setdefault(name, function) != function:
                raise ConfigError(
                    f"two steps of this task have the name {name}: name one of them, step.using(name=…)(…)"
                )
            number = self._calls[name]
            self._calls[name] += 1
        return Ticket(name, number, digest)

    def find(self, ticket: Ticket) -> Step | None:
        """The finished step that answers this call. None: it has to run. Raises StepChanged if that is not certain."""
        with self._lock:
            left = self._left.get(ticket.name, {})
            same = left.get(ticket.number)
            if same is None or same.digest != ticket.digest:
                # The code may have been reordered, or an earlier call may have been removed.
                alike = [number for number, step in left.items() if step.digest == ticket.digest]
                if alike:
                    return left.pop(min(alike))
                if same is None:
                    return None
                raise StepChanged(
                    f"step_changed: call {ticket.number + 1} of step {ticket.name} had other arguments in an earlier attempt. "
                    "Give each call a key, step.using(key=…), or give the changed step another name, step.using(name=…)"
                )
            return left.pop(ticket.number)

    def finish(self, ticket: Ticket, value: bytes | None, at: datetime) -> Step:
        """Note that a call has ended, and return the step to store. Raises StepTooLarge."""
        size = len(value or b"")
        if size > MAX_STEP_VALUE:
            raise StepTooLarge(
                f"step_too_large: step {ticket.name} returned {size:,} bytes, and a step may return {MAX_STEP_VALUE:,}: "
                "store the data elsewhere and return where it is"
            )
        with self._lock:
            if self._count >= MAX_STEPS or self._bytes + size > MAX_JOURNAL:
                raise StepTooLarge(
                    f"step_too_large: a job has at most {MAX_STEPS:,} steps, which return {MAX_JOURNAL:,} bytes in all: "
                    "let the job enqueue others"
                )
            step = self._next(ticket, value, at)
            self._note(step)
            return step

    def draft(self, ticket: Ticket, value: bytes, at: datetime) -> Step:
        """The step that `finish` would return now."""
        with self._lock:
            return self._next(ticket, value, at)

    def _next(self, ticket: Ticket, value: bytes | None, at: datetime) -> Step:
        taken = self._numbers.get(ticket.name, set())
        number = ticket.number
        while number in taken:
            number += 1
        return Step(ticket.name, number, ticket.digest, value, at)

    def _note(self, step: Step) -> None:
        self._numbers.setdefault(step.name, set()).add(step.number)
        self._count += 1
        self._bytes += len(step.value or b"")
