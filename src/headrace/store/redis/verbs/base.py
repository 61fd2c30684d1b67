"""What every verb of the Redis store needs: the way to the servers, the queues there are, and the time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from headrace.errors import ConfigError, OutcomeUnknown, StoreError, StoreFull, Unavailable
from headrace.model.clock import Clock
from headrace.store.redis import scripts
from headrace.store.redis.asking import Asked
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.keys import Keys
from headrace.store.redis.rounds import Round
from headrace.store.redis.scripts import Script
from headrace.store.redis.url import parse
from headrace.store.redis.wire import make_wire

STEP: Final = 500
"""Jobs that one script moves at most: a script holds up everybody."""

_SURVEYED: Final = 250
"""Looks into queues that one script of a survey takes."""

_FRESH: Final = 30.0
"""Seconds for which the server's clock and the list of queues are taken as known."""

_TRACE: Final = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])"
"""Of a key that never exists. A server that is full takes it because it begins with what frees memory."""

_T = TypeVar("_T")


def chunks(items: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def foreign(key: str) -> ConfigError:
    return ConfigError(f"{key} in Redis is not headrace's: name a prefix of its own with ?prefix= in the URL")


class Surveyed(NamedTuple):
    """What queues answered to one question."""

    found: dict[str, Reply]
    """Without those that have nothing to say."""
    silent: StoreError | None
    """Why a node of a cluster did not answer."""


class Base:
    """Shared by the verbs."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = parse(url)
        self._wire = make_wire(self._address)
        self._keys = Keys(self._address.prefix, self._wire.clustered)
        self._clock = clock
        self._registered: set[str] = set()
        self._known: set[str] = set()
        """The queues there were when the list of them was last read, and those claimed from since."""
        self._server_us = 0
        self._measured = float("-inf")

    # ── time ────────────────────────────────────────────────────────────────

    @property
    def _given(self) -> str:
        """What scripts take as the time: nothing for the server's own."""
        return "" if self._clock is None else str(to_us(self._clock.now()))

    async def _now_us(self) -> int:
        """The store's clock, without asking for it each time: the server's at its last word and what has passed since."""
        if self._clock is not None:
            return to_us(self._clock.now())
        passed = asyncio.get_running_loop().time() - self._measured
        if passed > _FRESH:
            await self._refresh()
            passed = 0.0
        return self._server_us + int(passed * 1_000_000)

    async def _refresh(self) -> None:
        """Ask for the time, and say again which queues there are: somebody may have flushed the server."""
        seconds, micro = await self._wire.time(self._keys.queues)
        self._server_us = int(seconds) * 1_000_000 + int(micro)
        self._measured = asyncio.get_running_loop().time()
        with suppress(StoreError):  # whoever asked may only want to read, or want nothing of this node
            if self._registered and (gone := await self._unlisted(self._registered)):
                await self._list_again(gone)

    async def _list_again(self, queues: list[str]) -> None:
        """The list of queues was dropped by hand. Those without counters are forgotten: the next enqueue lists them."""
        counted, silent = await self._survey(queues, "counted")
        if counted:
            await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *counted)
        if silent is None:
            self._registered.difference_update(set(queues) - counted.keys())

    async def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        await self._refresh()
        return from_us(self._server_us)

    # ── queues ──────────────────────────────────────────────────────────────

    async def _register(self, queues: Iterable[str]) -> None:
        """Janitors and onlookers find queues by this list, so a queue is on it before its first job is."""
        new = set(queues) - self._registered
        if new:
            try:
                await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *new)
            except StoreFull:
                # A full server refuses even what would change nothing.
                if await self._unlisted(new):
                    raise
            except (Unavailable, OutcomeUnknown):
                if not await self._had_jobs(new):
                    raise
                self._known |= new
                return  # the next call tries again
            # On the list first: whoever changes a rule now either sees the queue there or is seen here.
            try:
                await self._follow(new)
            except (Unavailable, OutcomeUnknown):
                if not await self._had_jobs(new):
                    raise
            self._registered |= new

    async def _had_jobs(self, queues: Iterable[str]) -> bool:
        """On a cluster the list, and the rules, lie on another node than a queue: one that had jobs has both long since."""
        counters = [self._keys.pair(queue)[1] for queue in queues]
        return self._keys.clustered and all([await self._wire.command(key, "HEXISTS", key, "e") for key in counters])

    async def _follow(self, queues: Iterable[str]) -> None:
        """On a cluster each queue has its own copy of the rules and of the tenants that are paused."""
        names = sorted(queues)
        if not self._keys.clustered or not names:
            return
        version, rules, tenants = await self._wire.run(scripts.RULES, self._keys.limits)
        if int(version):
            told = await self._ask_each(scripts.FOLLOW, names, version, len(rules), *rules, *tenants)
            if missing := [name for name in names if name not in told]:
                raise OutcomeUnknown(
                    f"the nodes of {', '.join(missing[:5])} do not answer: the rules and pauses there are the old ones; ask again"
                )

    async def _unlisted(self, queues: Iterable[str]) -> list[str]:
        """Those of them that are not on the list."""
        names = sorted(queues)
        listed = await self._wire.command(self._keys.queues, "SMISMEMBER", self._keys.queues, *names)
        return [name for name, there in zip(names, listed, strict=True) if not there]

    async def _queues(self) -> list[str]:
        """Every queue there is."""
        try:
            found = await self._wire.command(self._keys.queues, "SMEMBERS", self._keys.queues)
        except (Unavailable, OutcomeUnknown):
            # On a cluster only the node of the list may be down: the queues of the others go on.
            if not self._keys.clustered or not self._known | self._registered:
                raise
            return sorted(self._known | self._registered)
        try:
            self._known = {name.decode() for name in found}
            return sorted(self._known)
        except UnicodeDecodeError as error:
            raise foreign(self._keys.queues) from error

    # ── scripts ─────────────────────────────────────────────────────────────

    async def _run(self, script: Script, queue: str, *args: Any) -> Reply:
        """A script that may be repeated: after a lost answer it is."""
        return await self._wire.run(script, self._keys.of(queue), *args)

    async def _ask_each(self, script: Script, queues: Sequence[str], *args: Any) -> dict[str, Reply]:
        """The same on each of these queues, by queue: without those whose node does not answer, unless none does."""
        return await self._ask_by(script, dict.fromkeys(queues, args))

    async def _ask_by(
        self, script: Script, calls: Mapping[str, tuple[Any, ...]], *, within: float | None = None
    ) -> dict[str, Reply]:
        """That, with arguments by queue. `within`: as of `Pool.ask`."""
        asks: list[Asked] = []
        for queue, args in calls.items():
            keys = self._keys.of(queue)
            asks.append((keys[0], [("EVALSHA", script.sha, len(keys), *keys, *args)]))
        answers = await self._wire.ask_each(asks, script, within=within)
        heard = zip(calls, answers, strict=True)
        return {queue: answer[0] for queue, answer in heard if not isinstance(answer, StoreError)}

    def _round(self) -> Round:
        return Round(self._wire, self._keys)

    async def _run_each(self, script: Script, queues: Sequence[str], *args: Any) -> list[Reply]:
        """The same on each of these queues."""
        return await self._wire.run_many(script, [(self._keys.of(queue), args) for queue in queues])

    async def _survey(self, queues: Sequence[str], question: str, *words: Any) -> Surveyed:
        """Ask many queues one question (see `survey.lua`): on one server in a few scripts, on a cluster in one go per node."""
        size = 1 if self._keys.clustered else max(1, _SURVEYED // max(1, len(words)))
        some = list(chunks(queues, size))
        asks: list[Asked] = []
        for names in some:
            keys = self._keys.of(*names)
            asks.append((keys[0], [("EVALSHA", scripts.SURVEY.sha, len(keys), *keys, question, *words)]))
        found: dict[str, Reply] = {}
        silent: StoreError | None = None
        for names, answer in zip(some, await self._wire.ask_each(asks, scripts.SURVEY), strict=True):
            if isinstance(answer, StoreError):
                silent = answer
            else:
                found.update((names[int(number)], said) for number, said in answer[0])
        return Surveyed(found, silent)

    async def _confirmed(self, key: str) -> None:
        """Wait for as many replicas as the URL asks for to have what was written."""
        wanted = self._address.replicas
        if not wanted:
            return
        # WAIT is about what its own connection wrote, and that may have been another, or nothing in a repeated call. So there
        # is a write before it, which follows on everything and leaves nothing.
        [_, got] = await self._wire.command_many([("EVAL", _TRACE, 1, key), ("WAIT", wanted, 1000)], key)
        if got < wanted:
            raise OutcomeUnknown(
                f"stored, but only {got} of {wanted} replicas confirmed it within 1 s: it may be lost in a failover; ask again"
            )
