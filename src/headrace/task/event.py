"""Events: named values that are signalled once. A task waits for one without a slot, for days if need be.

`approved = app.event("payout.approved", Approval)`, then `await approved.wait(42, timeout="3d")` in a task, and
`approved.signal(42, Approval(by="ann"))` anywhere.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec

from headrace.errors import ConfigError, PayloadTooLarge, SerializationError, WaitTimeout
from headrace.model import duration
from headrace.model.gate import MAX_SIGNAL, NewGate, Wait, derived_gate_id
from headrace.model.lane import check_event_name, check_key, check_queue, check_tenant
from headrace.model.outcome import AWAITS
from headrace.model.step import Step
from headrace.runtime.blocking import blocking
from headrace.task.codec.result import ResultCodec
from headrace.task.context import StepKeeper, current_job
from headrace.task.journal import StepChanged, Suspension, Ticket
from headrace.task.steps import steps_outside

T = TypeVar("T")

EventKey = str | int | UUID | tuple[str | int, ...]
"""What tells the events of one name apart, such as the number of an order."""

_NIL: Final = b"\xc0"
"""None as MessagePack."""
_TIMED_OUT: Final = b"\x00"
_CAME: Final = b"\x01"
"""The first byte of what the journal keeps of a wait."""
_STEP: Final = "event "
"""Before the name of the event in the name of the step."""
_encode_time = msgspec.msgpack.Encoder().encode
_decode_time = msgspec.msgpack.Decoder(datetime).decode
_UNTYPED: Final = ResultCodec(Any, "event", of="the value of an event")


class EventHome(Protocol):
    """What an event needs of its app."""

    async def asignal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool: ...


def key_text(key: EventKey) -> str:
    """The key as HTTP and the command line take it: a tuple is a JSON array."""
    if isinstance(key, tuple):
        if not key or not all(_is_plain(part) for part in key):
            raise ConfigError(f"{key!r:.80} cannot be the key of an event: a tuple holds texts and whole numbers")
    elif not _is_plain(key) and not isinstance(key, UUID):
        raise ConfigError(
            f"{key!r:.80} cannot be the key of an event: use a text, a whole number, a UUID or a tuple of texts and numbers"
        )
    try:
        text = json.dumps(key, separators=(",", ":")) if isinstance(key, tuple) else str(key)
    except ValueError:  # Python does not write numbers of thousands of digits.
        raise ConfigError("the key of an event has too many digits: 1 to 256 printable characters") from None
    return check_key(text)


def _is_plain(part: object) -> bool:
    return isinstance(part, str | int) and not isinstance(part, bool)


def event_gate(name: str, key: EventKey, *, queue: str = "default", tenant: str = "") -> NewGate:
    """The gate of an event. Its id follows from the tenant, the name and the key."""
    text = key_text(key)
    id = derived_gate_id(check_tenant(tenant), check_event_name(name), text)
    return NewGate(id=id, queue=check_queue(queue), signalled=True, tenant=tenant)


def answer_of(step: Step) -> bytes | None:
    """The value of the signal that a step of a task remembers, without the byte that says that it came. None: another step."""
    value = step.value or b""
    # No other step stores this byte before a value, because MessagePack has one value only.
    return value[1:] if step.name.startswith(_STEP) and value[:1] == _CAME and len(value) > 1 else None


def encoded_untyped(value: Any) -> bytes:
    """The value of an event whose type is not known, for the store. Raises SerializationError."""
    return _checked(_UNTYPED.encode(value))


def _checked(encoded: bytes | None) -> bytes:
    value = _NIL if encoded is None else encoded
    if len(value) > MAX_SIGNAL:
        raise PayloadTooLarge(len(value), MAX_SIGNAL, what="the value of the event takes", setting="")
    return value


class Event(Generic[T]):
    """A named value that is signalled once for each key. Made by `app.event`."""

    def __init__(self, home: EventHome, name: str, hint: Any, *, queue: str, keep: timedelta) -> None:
        self._home = home
        self.name = check_event_name(name)
        """The name of the event."""
        self.type = hint
        """The type of its values."""
        self._codec = ResultCodec(hint, name, of=f"the type of event {name}")
        self.queue = check_queue(queue)
        """A queue of the tasks that wait."""
        self.keep = keep
        """How long the store remembers its value."""

    def __repr__(self) -> str:
        return f"<Event {self.name}>"

    async def asignal(self, key: EventKey, value: T, *, tenant: str = "") -> bool:
        """Give the value to the jobs that wait for this key, and to those that will. False: there was a value already.

        `tenant`: the tenant of the jobs that wait. A job waits for events of its own tenant only.
        """
        gate = event_gate(self.name, key, queue=self.queue, tenant=tenant)
        return await self._home.asignal(gate, self.encoded(value), self.keep)

    signal = blocking(asignal)

    def encoded(self, value: T) -> bytes:
        """The value for the store. Raises SerializationError if it does not fit the type of the event.

        The first value stays, so a wrong one would make each job dead that waits for it.
        """
        data = _checked(self._codec.encode(value))
        self._codec.decode(data)
        return data

    def encoded_json(self, value: Any) -> bytes:
        """The same for a value that was JSON."""
        return self.encoded(self._codec.from_json(value))

    async def wait(self, key: EventKey, *, timeout: duration.Duration | float | None = None) -> T:
        """Wait for the value, without a slot. A value that came first is not missed.

        `timeout` counts from the first attempt that came here. When it is over, WaitTimeout is raised, in every later attempt, too.
        """
        waiting = _EventWait.begin(self.name, key, timeout, self.queue)
        keeper, gate = waiting.keeper, waiting.gate.id
        # Most attempts that begin with a wait were resumed by its signal, so one call reads the journal and writes the answer.
        came = keeper.is_loaded or await keeper.answer(gate, waiting.unanswered()) is not None
        answer = waiting.remembered()
        if answer is None:
            with keeper.busy():
                value = await keeper.answer(gate, waiting.unanswered()) if came else None
                if waiting.needs_end:
                    await keeper.add(waiting.set_end(), lazy=False)
                answer = waiting.answer(value)
                if answer is not None and value is None:
                    await keeper.add(waiting.finish(answer), lazy=False)
        if answer is None:
            await keeper.suspend(waiting.suspension())
        decoded: T = self._value(answer, waiting)
        return decoded

    def wait_sync(self, key: EventKey, *, timeout: duration.Duration | float | None = None) -> T:
        """The same for sync tasks, in threads and in processes. It raises a BaseException through the task's code."""
        waiting = _EventWait.begin(self.name, key, timeout, self.queue)
        keeper, gate = waiting.keeper, waiting.gate.id
        came = keeper.is_loaded or keeper.answer_sync(gate, waiting.unanswered()) is not None
        answer = waiting.remembered()
        if answer is None:
            value = keeper.answer_sync(gate, waiting.unanswered()) if came else None
            if waiting.needs_end:
                keeper.add_sync(waiting.set_end(), lazy=False)
            answer = waiting.answer(value)
            if answer is None:
                keeper.suspend_sync(waiting.suspension())
            if value is None:
                keeper.add_sync(waiting.finish(answer), lazy=False)
        decoded: T = self._value(answer, waiting)
        return decoded

    def _value(self, answer: bytes | None, waiting: _EventWait) -> Any:
        if answer is None or answer[:1] != _CAME:
            raise WaitTimeout(f"event {self.name} of {waiting.key} was not signalled in time")
        try:
            return self._codec.decode(answer[1:])
        except SerializationError as error:
            raise StepChanged(f"step_changed: event {self.name} of {waiting.key}: {error}") from None


class _EventWait:
    """One call of `wait`: what the journal has of it, and what the store has."""

    def __init__(self, keeper: StepKeeper, gate: NewGate, name: str, key: str, timeout: timedelta | None) -> None:
        self.keeper = keeper
        self.gate = gate
        self.key = key
        self._event = name
        self._timeout = timeout
        self._call = keeper.journal.call(f"{_STEP}{name}[{key}]", b"", Event)
        self._end_call: Ticket | None = None
        if timeout is not None:
            self._end_call = keeper.journal.call(f"end of event {name}[{key}]", b"", Event)
        self._end: datetime | None = None

    @classmethod
    def begin(cls, name: str, key: EventKey, timeout: duration.Duration | float | None, queue: str) -> _EventWait:
        """Number the call now. The order in which waits are awaited may differ from attempt to attempt."""
        keeper = steps_outside(f"event {name}")
        gate = event_gate(name, key, queue=queue, tenant=current_job().tenant)
        span = None if timeout is None else duration.given_or_seconds(timeout, name="timeout")
        return cls(keeper, gate, name, key_text(key), span)

    def remembered(self) -> bytes | None:
        """What an earlier attempt got, and its time limit. After the journal was loaded."""
        journal = self.keeper.journal
        if self._end_call is not None and (end := journal.find(self._end_call)) is not None:
            self._end = _decode_time(end.value or b"")
        step = journal.find(self._call)
        return None if step is None else step.value

    @property
    def needs_end(self) -> bool:
        return self._end_call is not None and self._end is None

    def set_end(self) -> Any:
        """The step that remembers when the wait is over."""
        assert self._end_call is not None
        assert self._timeout is not None
        self._end = self.keeper.now() + self._timeout
        return self.keeper.journal.finish(self._end_call, _encode_time(self._end), self.keeper.now())

    def unanswered(self) -> Step:
        """The step that remembers the answer, so that a later signal does not change the past. The store knows the value."""
        return self.keeper.journal.draft(self._call, _CAME, self.keeper.now())

    def answer(self, value: bytes | None) -> bytes | None:
        """What the wait gives: the value of the signal, or that its time is over. None: neither has come."""
        if value is not None:
            # The store has this step already.
            self.finish(_CAME + value)
            return _CAME + value
        return _TIMED_OUT if self._end is not None and self._end <= self.keeper.now() else None

    def finish(self, answer: bytes) -> Any:
        return self.keeper.journal.finish(self._call, answer, self.keeper.now())

    def suspension(self) -> Suspension:
        return awaiting(self._event, self.key, self.gate, self._end)


def awaiting(name: str, key: str, gate: NewGate, end: datetime | None) -> Suspension:
    """The job waits for this event without a slot, until this time at the latest."""
    return Suspension(f"{AWAITS} event {name} of {key}", end, (gate,), (Wait(gate.id),))
