"""Steps: calls inside a task whose results are stored. A retry continues after the last finished one.

`account = await step(create_account, user)`, then `await sleep("14d")`, then `await step(send_bill, account)`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import typing
from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from headrace.errors import ConfigError, SerializationError
from headrace.model import duration
from headrace.model.outcome import ASLEEP
from headrace.task.codec.result import ResultCodec
from headrace.task.context import StepKeeper, running
from headrace.task.journal import StepChanged, Suspension, Ticket, digest_of, name_of

P = ParamSpec("P")
R = TypeVar("R")

_SHORT: Final = timedelta(seconds=1)
"""A shorter sleep keeps its slot."""

_inside: ContextVar[StepKeeper | None] = ContextVar("headrace_inside_step", default=None)
"""The steps of the job of which one is running: the steps that it calls are a part of it."""


def _inside_step() -> bool:
    """Whether the caller is a part of a step. A job that runs inside a step of another one, in tests, has its own steps."""
    return (keeper := _inside.get()) is not None and keeper is running().steps()


def steps_outside(what: str) -> StepKeeper:
    """The steps of the running job, for what works in the task itself; raises ConfigError inside one of its steps.

    A step that waits would keep its slot for as long, because an attempt is not ended while a step runs.
    """
    if _inside_step():
        raise ConfigError(f"{what}: this works in the task itself, not inside one of its steps")
    return running().steps()


_encode_time = msgspec.msgpack.Encoder().encode
_decode_time = msgspec.msgpack.Decoder(datetime).decode


def key_text(key: str | int | UUID) -> str:
    """The key in the name of the step. Raises ConfigError if it may not be the same text in the next attempt."""
    if not isinstance(key, str | int | UUID) or isinstance(key, bool) or key == "":
        raise ConfigError(f"{key!r:.80} cannot be the key of a step: use a text, a whole number or a UUID")
    return str(key)


class StepOptions(NamedTuple):
    key: str = ""
    name: str = ""
    lazy: bool = False
    tx: object = None

    def begin(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepKeeper, Ticket]:
        """Number the call now. The order in which steps are awaited may differ from attempt to attempt."""
        if not callable(function):
            raise ConfigError(
                f"step takes a function and its arguments, step(fetch, url), not {type(function).__name__}: it calls the function"
            )
        keeper = running().steps()
        name = self.name or name_of(function)
        code = None if self.name else getattr(function, "__code__", function)
        if self.key:
            return keeper, keeper.journal.call(f"{name}[{self.key}]", b"", code)
        return keeper, keeper.journal.call(name, digest_of(args, kwargs), code)

    def but(self, key: str | int | UUID | None, name: str | None, lazy: bool | None, tx: object) -> StepOptions:
        return StepOptions(
            key=self.key if key is None else key_text(key),
            name=name or self.name,
            lazy=self.lazy if lazy is None else lazy,
            tx=self.tx if tx is None else tx,
        )


class StepCall:
    """`await step(function, *args)`: runs the function once for this job, whatever happens to its attempts.

    An async function is awaited, and a plain one runs in a thread, or in place if `using(tx=…)` is given. Its result is
    stored, so it has a type that can be stored. When the job runs again, the same call returns the stored result and the
    function does not run.
    """

    def __init__(self, options: StepOptions = StepOptions()) -> None:  # noqa: B008  # immutable
        self._options = options

    def using(
        self,
        *,
        key: str | int | UUID | None = None,
        name: str | None = None,
        lazy: bool | None = None,
        tx: object = None,
    ) -> StepCall:
        """The same with options: `await step.using(key=region)(copy, region)`.

        `key` tells the calls of one function apart, in place of their order and arguments. `name` replaces the name of
        the function. A `lazy` step is written with the next step that is not lazy: use it for what may run twice. With
        `tx`, the step is stored inside your own transaction, so what the function wrote there and the step commit
        together, or neither does. `tx` is what `enqueue` takes.
        """
        return StepCall(self._options.but(key, name, lazy, tx))

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        if _inside_step():
            return _call(function, args, kwargs)
        keeper, ticket = self._options.begin(function, args, kwargs)
        return self._run(keeper, ticket, function, args, kwargs)

    async def _run(
        self,
        keeper: StepKeeper,
        ticket: Ticket,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        await keeper.load()
        codec = _codec(function)
        step = keeper.journal.find(ticket)
        if step is not None:
            return _remembered(codec, ticket, step.value)
        with keeper.busy():
            outside = _inside.set(keeper)
            try:
                value = codec.encode(await _call(function, args, kwargs, self._options.tx))
            finally:
                _inside.reset(outside)
            finished = keeper.journal.finish(ticket, value, keeper.now())
            if self._options.tx is None:
                await keeper.add(finished, lazy=self._options.lazy)
            else:
                await keeper.add_in(finished, self._options.tx)
        # What was stored, so that the first attempt sees the same value as the later ones.
        return codec.decode(value)


class SyncStepCall:
    """`step_sync(function, *args)`: the same for sync tasks, in threads and in processes."""

    def __init__(self, options: StepOptions = StepOptions()) -> None:  # noqa: B008  # immutable
        self._options = options

    def using(
        self,
        *,
        key: str | int | UUID | None = None,
        name: str | None = None,
        lazy: bool | None = None,
        tx: object = None,
    ) -> SyncStepCall:
        """The same with options, as `step.using` has them."""
        return SyncStepCall(self._options.but(key, name, lazy, tx))

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if _inside_step():
            return function(*args, **kwargs)
        keeper, ticket = self._options.begin(function, args, kwargs)
        keeper.load_sync()
        codec = _codec(function)
        step = keeper.journal.find(ticket)
        if step is not None:
            remembered: R = _remembered(codec, ticket, step.value)
            return remembered
        outside = _inside.set(keeper)
        try:
            value = codec.encode(function(*args, **kwargs))
        finally:
            _inside.reset(outside)
        finished = keeper.journal.finish(ticket, value, keeper.now())
        if self._options.tx is None:
            keeper.add_sync(finished, lazy=self._options.lazy)
        else:
            keeper.add_in_sync(finished, self._options.tx)
        result: R = codec.decode(value)
        return result


step: Final = StepCall()
"""Runs a function once for this job: `account = await step(create_account, user)`."""
step_sync: Final = SyncStepCall()
"""The same for sync tasks: `account = step_sync(create_account, user)`."""


async def sleep(until: duration.Duration | float | datetime, *, key: str | int | UUID | None = None) -> None:
    """Wait without a slot, for a duration or until an aware datetime.

    `await sleep("14d")`: the worker ends the attempt and runs the job again when the time has come. Finished steps then answer from the
    journal, and the sleep is over. The time counts from the first attempt that came here. A sleep of less than a second
    keeps its slot. `key` tells several sleeps apart where their order may change.
    """
    if (short := _short(until)) is not None:
        await asyncio.sleep(short)
        return
    keeper, ticket = _begin_sleep(key)
    await keeper.load()
    step = keeper.journal.find(ticket)
    end = _end_of(until, keeper.now()) if step is None else _decode_time(step.value or b"")
    if step is None:
        with keeper.busy():
            await keeper.add(keeper.journal.finish(ticket, _encode_time(end), keeper.now()), lazy=False)
    if end > keeper.now():
        await keeper.suspend(asleep(end))


def sleep_sync(until: duration.Duration | float | datetime, *, key: str | int | UUID | None = None) -> None:
    """The same for sync tasks, in threads and in processes. It raises a BaseException through the task's code."""
    if (short := _short(until)) is not None:
        time.sleep(short)
        return
    keeper, ticket = _begin_sleep(key)
    keeper.load_sync()
    step = keeper.journal.find(ticket)
    end = _end_of(until, keeper.now()) if step is None else _decode_time(step.value or b"")
    if step is None:
        keeper.add_sync(keeper.journal.finish(ticket, _encode_time(end), keeper.now()), lazy=False)
    if end > keeper.now():
        keeper.suspend_sync(asleep(end))


def asleep(end: datetime) -> Suspension:
    """The job sleeps until then, without a slot."""
    return Suspension(f"{ASLEEP} {end.isoformat(timespec='seconds')}", end)


def _begin_sleep(key: str | int | UUID | None) -> tuple[StepKeeper, Ticket]:
    keeper = steps_outside("a sleep of a second and more")
    return keeper, keeper.journal.call("sleep" if key is None else f"sleep[{key_text(key)}]", b"", sleep)


def _short(until: duration.Duration | float | datetime) -> float | None:
    """The seconds of a sleep that keeps its slot."""
    if isinstance(until, datetime):
        return None
    span = duration.given_or_seconds(until, name="sleep")
    return span.total_seconds() if span < _SHORT else None


def _end_of(until: duration.Duration | float | datetime, now: datetime) -> datetime:
    if isinstance(until, datetime):
        return duration.check_near(until, name="sleep")
    return now + duration.given_or_seconds(until, name="sleep")


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tx: object = None) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    if tx is None:
        result = await asyncio.to_thread(function, *args, **kwargs)
    else:
        result = function(*args, **kwargs)  # The connection of a transaction may be used in one thread only.
    return await result if inspect.isawaitable(result) else result


def _remembered(codec: ResultCodec, ticket: Ticket, value: bytes | None) -> Any:
    try:
        return codec.decode(value)
    except SerializationError as error:
        raise StepChanged(
            f"step_changed: the stored result of step {ticket.name} {error}. Give the changed step another name, "
            "step.using(name=…)"
        ) from None


def _codec(function: Callable[..., Any]) -> ResultCodec:
    # Of a method, the function is remembered and not its object, which may be large.
    inner = getattr(function, "func", function)
    inner = getattr(inner, "__func__", inner)
    return _known_codec(inner) if isinstance(inner, Hashable) else _new_codec(inner)


def _new_codec(function: Callable[..., Any]) -> ResultCodec:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}  # A builtin has no annotations, and a name may be imported for type checkers only.
    return ResultCodec(hints.get("return", Any), name_of(function))


_known_codec = lru_cache(1024)(_new_codec)
