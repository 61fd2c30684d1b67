"""Limits in a store: what workers declare and observe, what operators change, and `app.limits`.

`policy/recovery.py` decides what a limit allows. The code here writes it by compare-and-set, so that any number of workers
and operators agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Unpack

import msgspec
from msgspec.structs import replace

from headrace.client.per_loop import Clients
from headrace.errors import ConfigError, HeadraceError, LimitNotFound
from headrace.model.job import JobId
from headrace.model.lane import check_key
from headrace.model.records import LimitRule
from headrace.operate.audit import Ledger, of_limit
from headrace.operate.holders import LimitHolders, holders
from headrace.policy.recovery import (
    WELL,
    LimitHealth,
    LimitObservation,
    State,
    after,
    figures_of,
    pack,
    rested,
    rule_of,
    unpack,
)
from headrace.runtime.blocking import blocking
from headrace.store.contract import Store
from headrace.task.limit import LimitDeclaration, LimitFigures, burst_of, describe
from headrace.task.limit_options import FIGURE_OPTIONS, FigureKeywords, check_name, checked_for

log = logging.getLogger("headrace.limits")

_TRIES = 50
"""Writers that meet at one rule; more of them than that in one moment is a bug."""

_NOTHING = State()

Change = Callable[[State, State], State]
"""(what is known of the key, what is known of its limit) → what is to be known of the key."""


class LimitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as the store has it."""

    name: str
    """Its name, or one whole key of it, e.g. `shop:acme`."""
    declared: LimitFigures | None
    """By code; None: this is one key's own rule."""
    override: LimitFigures | None
    """By an operator, in place of the declared ones."""
    rule: LimitRule
    """What it allows right now."""
    health: LimitHealth
    """What it has been through."""

    @property
    def half_open(self) -> bool:
        """From `rule.closed_until` on one job at a time, until one succeeds."""
        return self.health.closed_until is not None


class Limits:
    """The limits of one store, as workers read and write them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> dict[str, LimitEntry]:
        """Every limit that has a rule, by name."""
        return {name: _entry(name, rule) for name, rule in sorted((await self._store.limits()).items())}

    async def declare(self, limits: Mapping[str, LimitDeclaration], *, app: str = "") -> None:
        """Store what code declares. Figures that an operator has set stay, and so does what a limit has been through."""
        rules = await self._store.limits()
        for name, declared in limits.items():
            known = unpack(rules[name].state).declared if name in rules else None
            if known is not None and msgspec.structs.replace(known, by="") == declared:
                continue
            if known is not None and app and known.by and known.by != app:
                log.warning(
                    "limit %s is declared by two apps of this store: %s (%s), and now %s (%s): these last figures hold for "
                    "both; let them agree, or give one of them another name",
                    name,
                    known.by,
                    describe(known.figures),
                    app,
                    describe(declared.figures),
                    extra={"event": "limit.contested", "limit": name},
                )
            await self._change(name, _declare(msgspec.structs.replace(declared, by=app)))
            await self._follow(name)

    async def observe(
        self, key: str, declared: LimitDeclaration, seen: Sequence[LimitObservation], now: datetime
    ) -> LimitHealth:
        """What became of jobs that needed this key; answers how its limit is after that."""
        health = WELL

        def change(state: State, base: State) -> State:
            nonlocal health
            health = rested(state.health, now)
            for observation in seen:
                health = after(health, observation, base.declared or declared, now)
            own = state.declared or (None if ":" in key else declared)
            return State(declared=own, override=state.override, health=health)

        await self._change(key, change)
        return health

    # ── writing ─────────────────────────────────────────────────────────────
    async def _change(self, key: str, change: Change) -> LimitEntry | None:
        for _ in range(_TRIES):
            rules = await self._store.limits()
            rule = rules.get(key)
            state = _NOTHING if rule is None else unpack(rule.state)
            base = base_of(rules, key, state)
            changed = change(state, base)
            if changed == _NOTHING and rule is None:
                return None
            fresh = None if changed == _NOTHING else rule_from(changed, changed if ":" not in key else base)
            if rule is not None and fresh is not None and replace(fresh, version=rule.version) == rule:
                return _entry(key, rule)
            version = await self._store.limit(key, fresh, None if rule is None else rule.version)
            if version is not None:
                return None if fresh is None else _entry(key, fresh)
        raise HeadraceError(f"limit {key!r}: too many others change it at this moment; try again")

    async def _follow(self, name: str, *, heal: bool = False) -> None:
        """Keys with a rule of their own follow what their limit has become."""
        if ":" in name:
            return
        for key in await self._store.limits():
            if key.startswith(f"{name}:"):
                await self._change(
                    key, lambda state, _: State(override=state.override, health=WELL if heal else state.health)
                )

    async def holders(self, name: str, *, before: JobId | None = None) -> LimitHolders:
        """The running jobs that hold units of a limit or of one key; raises LimitNotFound."""
        await self._must_know(name)
        return await holders(self._store, name, before=before)

    async def _must_know(self, name: str) -> None:
        rules = await self._store.limits()
        if name not in rules and name.partition(":")[0] not in rules:
            known = ", ".join(sorted(limit for limit in rules if ":" not in limit)) or "none"
            raise LimitNotFound(
                f"there is no limit {name!r} (known: {known}): a limit is there once a worker whose app declares it has run"
            )


class LimitOperations(Limits):
    """The limits of one store, as an operator changes them: each change leaves an entry in the audit log."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        super().__init__(store)
        self._ledger = ledger

    async def set(self, name: str, figures: LimitFigures) -> LimitEntry:
        """Replace the declared figures by those of an operator; a figure that is left out stays as it is."""
        check_limit(name)
        if figures == LimitFigures():
            raise ConfigError(f'limit {name!r}: give at least one of rate="50/s", burst=10 and concurrency=4')

        def change(state: State, base: State) -> State:
            override = _joined(state.override, figures)
            check_figures(name, base.declared, _joined(base.override, override))
            return msgspec.structs.replace(state, override=override)

        await self._must_know(name)
        entry = await self._change(name, change)
        await self._follow(name)
        assert entry is not None  # it has figures of its own now
        await self._ledger.note("limits.set", of_limit(name, entry.override))
        return entry

    async def reset(self, name: str) -> LimitEntry | None:
        """Return a limit and all its keys to the declared figures, and open them; None: this key has no rule of its own."""
        check_limit(name)
        await self._must_know(name)
        entry = await self._change(name, lambda state, _: State(declared=state.declared))
        await self._follow(name, heal=True)
        await self._ledger.note("limits.reset", name)
        return entry

    async def remove(self, name: str) -> list[str]:
        """Forget a limit with every key of it, or one key's own rule; answers the names that are gone.

        The limit no longer holds back jobs that wait with it. A worker whose code declares it stores it when it starts.
        """
        check_limit(name)
        await self._must_know(name)
        gone = [key for key in await self._store.limits() if key == name or key.startswith(f"{name}:")]
        # The keys go first, so that the rule of the limit counts for them until it is gone, too.
        for key in sorted(gone, reverse=True):
            await self._change(key, lambda _, __: _NOTHING)
        if gone:
            await self._ledger.note("limits.remove", name)
        return sorted(gone)


def base_of(rules: Mapping[str, LimitRule], key: str, state: State) -> State:
    """What is known of the limit that a key belongs to; a whole limit is its own base."""
    if ":" not in key:
        return state
    rule = rules.get(key.partition(":")[0])
    return _NOTHING if rule is None else unpack(rule.state)


def rule_from(state: State, base: State) -> LimitRule:
    """The figures that follow from what is known of a key and of its limit."""
    override = state.override if base is state else _joined(base.override, state.override)
    allowed = rule_of(base.declared, override, state.health)
    return LimitRule(
        concurrency=allowed.concurrency,
        rate=allowed.rate,
        burst=allowed.burst,
        closed_until=allowed.closed_until,
        state=pack(state),
    )


def _declare(declared: LimitDeclaration) -> Change:
    def change(state: State, _: State) -> State:
        return State(declared=declared, override=state.override, health=state.health)

    return change


def _joined(under: LimitFigures | None, over: LimitFigures | None) -> LimitFigures | None:
    """Two sets of an operator's figures, the second before the first."""
    if under is None or over is None:
        return over or under
    return LimitFigures(
        concurrency=under.concurrency if over.concurrency is None else over.concurrency,
        rate=under.rate if over.rate is None else over.rate,
        burst=under.burst if over.burst is None else over.burst,
    )


def check_figures(name: str, declared: LimitDeclaration | None, override: LimitFigures | None) -> None:
    """Figures under which no job could ever run are refused."""
    figures, cost = figures_of(declared, override), 1 if declared is None else declared.cost
    if figures.concurrency is not None and figures.concurrency < cost:
        raise ConfigError(f"limit {name!r}: concurrency = {figures.concurrency}, and one job needs {cost} units of it")
    if figures.rate is not None and burst_of(figures, cost) < cost:
        raise ConfigError(f"limit {name!r}: burst = {figures.burst}, and one job needs {cost} units of it")
    if figures.burst is not None and figures.rate is None:
        raise ConfigError(f"limit {name!r}: burst = {figures.burst} without a rate: give that, too")


def _entry(name: str, rule: LimitRule) -> LimitEntry:
    state = unpack(rule.state)
    declared = None if state.declared is None else state.declared.figures
    return LimitEntry(name=name, declared=declared, override=state.override, rule=rule, health=state.health)


def check_limit(name: str) -> str:
    """A limit's name, or one whole key of it, or a ConfigError."""
    if not isinstance(name, str):
        raise ConfigError(f"{name!r} is no limit: write its name, or one key of it as name:key")
    base, colon, own = name.partition(":")
    check_name(base)
    if colon and not own:
        raise ConfigError(f"{name!r} is no limit: a key follows the colon, or write {base}")
    return check_key(name)


def figures(name: str, **options: Unpack[FigureKeywords]) -> LimitFigures:
    """The figures of an operator, checked."""
    return LimitFigures(**checked_for(name, FIGURE_OPTIONS, options))


# ── the app ──────────────────────────────────────────────────────────────────


class AppLimits:
    """The limits in the store, listed and changed at run time. Verbs come in two, `x` for sync code and `ax` for async code."""

    def __init__(self, clients: Clients, declared: Mapping[str, LimitDeclaration]) -> None:
        self._clients = clients
        self.declared = declared
        """The limits of the app's tasks; a worker stores them when it starts."""

    async def alist(self) -> Mapping[str, LimitEntry]:
        """Every limit by name: its declared figures, those of an operator, and what it allows right now."""
        return await (await self._operations()).all()

    list = blocking(alist)

    async def aset(self, name: str, **options: Unpack[FigureKeywords]) -> LimitEntry:
        """Replace the declared figures for every worker, from now on: `app.limits.set("stripe", rate="50/s")`.

        `name` may be one key of a limit, e.g. `shop:acme`. The figures stay, also over a deploy, until `reset`.
        """
        return await (await self._operations()).set(name, figures(name, **options))

    set = blocking(aset)

    async def areset(self, name: str) -> LimitEntry | None:
        """Return to the declared figures, and open the limit; None: this key has no figures of its own."""
        return await (await self._operations()).reset(name)

    reset = blocking(areset)

    async def aremove(self, name: str) -> Sequence[str]:
        """Forget a limit that no code declares any more, and its keys' own figures; answers the names that are gone.

        The limit no longer holds back jobs. A worker whose code declares it after all stores it when it starts.
        """
        return await (await self._operations()).remove(name)

    remove = blocking(aremove)

    async def _operations(self) -> LimitOperations:
        client = await self._clients.here()
        return LimitOperations(client.store, Ledger.of(client.store, audit=client.audit))
