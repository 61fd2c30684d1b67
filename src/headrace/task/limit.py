"""Limits: how many jobs at once and how fast, as a task declares it.

`policy/recovery.py` computes what a limit allows after the outcomes of jobs. `operate/stored_limits.py` writes rules
into a store. Each store's claim obeys them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import floor
from typing import Any, Protocol, Unpack, runtime_checkable

import msgspec

from headrace.errors import ConfigError, Unsupported
from headrace.model import duration
from headrace.model import rate as rates
from headrace.model.lane import check_key
from headrace.task.limit_options import COOL_DOWN, LIMIT_OPTIONS, LimitKeywords, check_name, checked_for, units


class LimitFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a limit allows while it is fully open. None: not limited."""

    concurrency: int | None = None
    """Units held at once."""
    rate: float | None = None
    """Units per second."""
    burst: int | None = None
    """Units that may go at once; None: a second's worth."""


class LimitDeclaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit as code declares it, without its functions."""

    figures: LimitFigures
    cost: int = 1
    """Units that one job may need; 1 if a function computes the cost."""
    breaker: int | None = None
    cool_down: float = COOL_DOWN.total_seconds()
    by: str = ""
    """The app whose code declares it, as stored. Empty: unknown."""


class Limit:
    """At most so many at once, or so many per time, over every task, process and worker that names it.

    `Limit("stripe", rate="90/s", burst=30)`; `Limit("shop", concurrency=4, key=lambda order_id, shop: shop)` is one
    limit for each shop. `key` and `cost` may be functions of the task's arguments; a key of None: that job needs
    nothing of it. `breaker=5`: five failures in a row close it for `cool_down`, then one job at a time is let through
    until one succeeds.
    """

    __slots__ = ("breaker", "burst", "concurrency", "cool_down", "cost", "key", "name", "rate")

    def __init__(self, name: str, **options: Unpack[LimitKeywords]) -> None:
        """`LimitKeywords` says what each option means."""
        self.name = check_name(name)
        given = checked_for(name, LIMIT_OPTIONS, options)
        self.concurrency: int | None = given.get("concurrency")
        self.rate: float | None = given.get("rate")
        self.burst: int | None = given.get("burst")
        self.breaker: int | None = given.get("breaker")
        self.key: Callable[..., str | int | None] | None = given.get("key")
        self.cool_down: timedelta = given.get("cool_down", COOL_DOWN)
        where = f"limit {name!r}: "
        if self.burst is not None and self.rate is None:
            raise ConfigError(f'{where}burst = {self.burst} without rate: give rate="90/s", or concurrency alone')
        if self.concurrency is None and self.rate is None and self.breaker is None:
            raise ConfigError(f'{where}it limits nothing: give concurrency=4, rate="90/s" or breaker=5')
        cost: int | Callable[..., int] = given.get("cost", 1)
        if not callable(cost):
            self._check_cost(cost)
        self.cost = cost

    def __repr__(self) -> str:
        return f"<Limit {self.name}: {describe(self.figures)}>"

    @property
    def figures(self) -> LimitFigures:
        return LimitFigures(concurrency=self.concurrency, rate=self.rate, burst=self.burst)

    @property
    def declared(self) -> LimitDeclaration:
        """The declaration that is stored."""
        return LimitDeclaration(
            figures=self.figures,
            cost=self.cost if isinstance(self.cost, int) else 1,
            breaker=self.breaker,
            cool_down=self.cool_down.total_seconds(),
        )

    def keys_for(self, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """The key that a job with these arguments needs, as `lane.split_limit` reads it; empty: it needs none."""
        own: str | int | None = None
        if self.key is not None:
            own = self.key(*args, **kwargs)
            if own is None:
                return ()
            if isinstance(own, bool) or not isinstance(own, str | int) or own == "":
                raise ConfigError(
                    f"limit {self.name!r}: its key is {own!r}: a text, a whole number, or None for no limit"
                )
        cost = self.cost
        if not isinstance(cost, int):
            cost = units(cost(*args, **kwargs), f"limit {self.name!r}: cost")
            self._check_cost(cost)
        return (_key(self.name, cost, own),)

    def _check_cost(self, cost: int) -> None:
        where = f"limit {self.name!r}: cost = {cost}"
        if self.concurrency is not None and cost > self.concurrency:
            raise ConfigError(f"{where} is over concurrency = {self.concurrency}: such a job could never run")
        if self.burst is not None and cost > self.burst:
            raise ConfigError(f"{where} is over burst = {self.burst}: such a job could never run; set burst={cost}")
        if self.rate is not None and self.burst is None and callable(getattr(self, "cost", 1)):
            least = burst_of(self.figures, 1)
            if cost > least:
                raise ConfigError(
                    f"{where} is over a second's worth ({least}): such a job could never run; set burst={cost}"
                )

    def tripped(self, until: duration.Duration | datetime) -> None:
        """Close the limit, in a task whose service refuses: no job of it starts until then, and few at first after."""
        from headrace.task.context import running as current

        running = current()
        if not isinstance(running, Tripping):
            raise Unsupported(
                f'limit {self.name!r}: a task with executor="process" cannot reach its worker: raise RetryAfter("30s") '
                "instead, which does the same for limits with a rate"
            )
        running.trip(self, duration.given_or_time(until, name="until", example="30s"))


@runtime_checkable
class Tripping(Protocol):
    """An attempt whose worker can close a limit."""

    def trip(self, limit: Limit, until: timedelta | datetime) -> None: ...


def check_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """A task's `limits=`, or a ConfigError."""
    if isinstance(limits, Limit | str | Mapping):
        raise ConfigError(f"limits = {limits!r}: a list, e.g. limits=[stripe]")
    entries = tuple(limits)
    for entry in entries:
        if not isinstance(entry, Limit):
            raise ConfigError(f'limits: {entry!r} is not a Limit: write Limit("name", rate="90/s")')
    names = [limit.name for limit in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"limits: {twice!r} is there twice: name each limit once")
    return tuple(sorted(entries, key=lambda limit: limit.name))


def keys_of(limits: Sequence[Limit], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The limit keys of a job, in order, as its lane has them."""
    if len(limits) == 1:
        return limits[0].keys_for(*args, **kwargs)
    return tuple(sorted(key for limit in limits for key in limit.keys_for(*args, **kwargs)))


class Shape:
    """The parameters of a task for functions of its arguments: all of them, also those that a call leaves out."""

    def __init__(self, function: Callable[..., Any], limits: Sequence[Limit] = ()) -> None:
        """Raise ConfigError if a function of these limits cannot be called with them."""
        parameters = list(inspect.signature(function).parameters.values())
        self._positional = [
            (parameter.name, parameter.default)
            for parameter in parameters
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        self._named = [
            (parameter.name, parameter.default) for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
        ]
        self._any = len(self._positional) + len(self._named) < len(parameters)
        """The task takes any number of arguments. They are passed on unchanged."""
        self._count = -1 if self._any or self._named else len(self._positional)
        """This many positional arguments make a complete call."""
        asked = [
            (f"limit {limit.name!r}: its {what} function", callback)
            for limit in limits
            for what, callback in (("key", limit.key), ("cost", limit.cost))
            if callable(callback)
        ]
        self._by_name = not self._any and not all(self._fits(callback, by_name=False) for _, callback in asked)
        if self._by_name and (
            wrong := next((who for who, callback in asked if not self._fits(callback, by_name=True)), None)
        ):
            names = ", ".join(name for name, _ in (*self._positional, *self._named)) or "nothing"
            raise ConfigError(f"{wrong} must take what the task takes: {names}")

    def full(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """A call of the task with every argument. Omitted arguments get the function's defaults."""
        if self._any or (len(args) == self._count and not kwargs and not self._by_name):
            return args, kwargs
        given = [*args, *(kwargs.get(name, default) for name, default in self._positional[len(args) :])]
        named = {name: kwargs.get(name, default) for name, default in self._named}
        if not self._by_name:
            return given, named
        return (), dict(zip((name for name, _ in self._positional), given, strict=True)) | named

    def _fits(self, function: Callable[..., Any], *, by_name: bool) -> bool:
        positional = () if by_name else self._positional
        named = {name: None for name, _ in (*self._positional, *self._named)} if by_name else dict(self._named)
        try:
            inspect.signature(function).bind(*positional, **named)
        except TypeError:
            return False
        except ValueError:
            return True  # The signature of a builtin is unknown.
        return True


class LimitedTask(Protocol):
    """The part of a task that its limits need."""

    @property
    def options(self) -> LimitingOptions: ...


class LimitingOptions(Protocol):
    """The options of a task that its limits need."""

    @property
    def queue(self) -> str: ...
    @property
    def limits(self) -> Sequence[Limit]: ...


class DeclaredLimits(dict[str, LimitDeclaration]):
    """The limits of an app's tasks, by name."""

    def declare(self, limits: Iterable[Limit]) -> None:
        """Add the limits of a task; tasks that name the same limit must declare the same figures."""
        for limit in limits:
            fresh, known = limit.declared, self.get(limit.name)
            if known is None:
                self[limit.name] = fresh
                continue
            if (fresh.figures, fresh.breaker, fresh.cool_down) != (known.figures, known.breaker, known.cool_down):
                raise ConfigError(
                    f"limit {limit.name!r} is declared twice with other figures ({describe(known.figures)}; "
                    f"{describe(fresh.figures)}): make one Limit and share it, or give one another name"
                )
            self[limit.name] = msgspec.structs.replace(known, cost=max(known.cost, fresh.cost))

    @staticmethod
    def refuse_shared(tasks: Iterable[LimitedTask]) -> None:
        """On a Redis cluster a limit counts within one queue: tasks of two queues would exceed what they share."""
        queues: dict[str, str] = {}
        for task in tasks:
            for limit in task.options.limits:
                other = queues.setdefault(limit.name, task.options.queue)
                if other != task.options.queue:
                    raise ConfigError(
                        f"limit {limit.name!r} is shared by tasks of the queues {other!r} and {task.options.queue!r}: on a "
                        "Redis cluster a limit counts within one queue, and together they would exceed it; "
                        "put these tasks into one queue, or declare a Limit with another name for each queue"
                    )


@functools.lru_cache(10_000)
def _key(name: str, cost: int, own: str | int | None) -> str:
    """The key as a lane has it. Cached, because many jobs share few keys."""
    return check_key(f"{name}{'' if cost == 1 else f'@{cost}'}{'' if own is None else f':{own}'}")


def burst_of(figures: LimitFigures, cost: int) -> int:
    """Units that may go at once: as given, else those of one second, and at least the units of one job."""
    if figures.burst is not None:
        return max(figures.burst, 1)
    return max(1, floor(figures.rate or 0), cost)


def describe(figures: LimitFigures) -> str:
    """`90/s burst 30, 4 at once`."""
    parts: list[str] = []
    if figures.rate is not None:
        parts.append(rates.show(figures.rate) + (f" burst {figures.burst}" if figures.burst is not None else ""))
    if figures.concurrency is not None:
        parts.append(f"{figures.concurrency:,} at once")
    return ", ".join(parts) or "no figures"
