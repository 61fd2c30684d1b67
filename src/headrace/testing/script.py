"""How the kit serves sync and async code with one piece of logic.

A script is a generator. It yields what is to be done: a call of the store's side, which runs in the portal, or an attempt,
which runs in the caller. `play` does it for sync code and `aplay` for async code.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from headrace.testing.execute import RunCoroutine, RunEnd, aexecute, execute, run_coroutine
from headrace.testing.stand_in import ain_portal, in_portal
from headrace.worker.attempt import Attempt

T = TypeVar("T")


class StoreCall:
    """A call of the store's side."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.make = make


class Here:
    """A coroutine of the user, which runs in the caller."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.make = make


class Run:
    """The task of an attempt. The answer is a `RunEnd`."""

    __slots__ = ("attempt", "crash_at")

    def __init__(self, attempt: Attempt, crash_at: int | None = None) -> None:
        self.attempt = attempt
        self.crash_at = crash_at


Script = Generator[StoreCall | Here | Run, Any, T]


def play(script: Script[T], run: RunCoroutine = run_coroutine) -> T:
    """Do what a script asks for, in this thread. `run` runs coroutines of the user."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = script.send(answer) if error is None else script.throw(error)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = error = None
        try:
            match step:
                case StoreCall(make=make):
                    answer = in_portal(make)
                case Here(make=make):
                    answer = run(make)
                case Run(attempt=attempt, crash_at=crash_at):
                    ended: RunEnd = execute(attempt, crash_at, run)
                    answer = ended
        except BaseException as raised:  # noqa: BLE001  # the script decides what it means
            error = raised


async def aplay(script: Script[T]) -> T:
    """The same in the running event loop."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = script.send(answer) if error is None else script.throw(error)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = error = None
        try:
            match step:
                case StoreCall(make=make):
                    answer = await ain_portal(make)
                case Here(make=make):
                    answer = await make()
                case Run(attempt=attempt, crash_at=crash_at):
                    ended: RunEnd = await aexecute(attempt, crash_at)
                    answer = ended
        except BaseException as raised:  # noqa: BLE001  # the script decides what it means
            error = raised
