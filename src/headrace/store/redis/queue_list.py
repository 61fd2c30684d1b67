"""The list of queues in Redis, and what this process knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from headrace.errors import OutcomeUnknown, StoreError, StoreFull, Unavailable
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.faults import foreign
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.leaving import UNLISTED, Leaving


class QueueList:
    """Janitors and operators find queues by this list, so a queue is on it before its first job is stored."""

    def __init__(self, client: Client) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._leaving = Leaving(client.wire, client.keys)
        self.registered: set[str] = set()
        """Queues that this process has put on the list."""
        self.known: set[str] = set()
        """The queues of the list when it was last read, and those that this process has claimed from since."""
        self.on_read: Callable[[list[str]], None] | None = None
        """Called with all names whenever the list was read."""

    async def names(self) -> list[str]:
        """Every queue there is."""
        names = await self._names()
        if self.on_read is not None:
            self.on_read(names)
        return names

    async def _names(self) -> list[str]:
        try:
            members = await self._wire.command(self._keys.queues, "SMEMBERS", self._keys.queues)
        except (Unavailable, OutcomeUnknown):
            # On a cluster only the node of the list may be down: work on the queues of the other nodes continues.
            if not self._keys.clustered or not self.known | self.registered:
                raise
            return sorted(self.known | self.registered)
        try:
            self.known = {name.decode() for name in members}
            return sorted(self.known)
        except UnicodeDecodeError as error:
            raise foreign(self._keys.queues) from error

    async def register(self, queues: Iterable[str]) -> None:
        """Put these on the list, and give them the rules of limits that are in force."""
        new = set(queues) - self.registered
        if new:
            try:
                await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *new)
            except StoreFull:
                # A full server refuses even a command that would change nothing.
                if await self._unlisted(new):
                    raise
            except (Unavailable, OutcomeUnknown):
                if not await self._had_jobs(new):
                    raise
                self.known |= new
                return  # the next call tries again
            # The list comes first: a process that changes a rule now either sees the queue there or is seen here.
            try:
                await self.follow(new)
            except (Unavailable, OutcomeUnknown):
                if not await self._had_jobs(new):
                    raise
            self.registered |= new

    async def fill(self, script: Script, queues: Sequence[str], *args: Any) -> Reply:
        """Run a script that stores something in these queues. On a cluster a queue that was forgotten is listed first."""
        while True:
            answer: Reply = await self._wire.run(script, self._keys.of(*queues), *args)
            if answer[0] != UNLISTED:
                return answer
            [queue] = queues  # a script of a cluster sees one queue
            await self._leaving.come_back(queue, answer[1])
            await self.follow(queues)
            self.registered.add(queue)

    async def forget(self, queue: str, time_arg: str, remembered: int) -> bool:
        """On a cluster: drop a queue without jobs. False: it has jobs, or is needed otherwise, or is on the list again."""
        left = await self._leaving.leave(queue, time_arg, remembered)
        if left:
            self.registered.discard(queue)
        return left

    async def _had_jobs(self, queues: Iterable[str]) -> bool:
        """Whether all of these had jobs before.

        On a cluster the list and the rules are on another node than a queue. A queue that had jobs is on the list and
        has the rules, so it can be used while that node is down.
        """
        counters = [self._keys.pair(queue)[1] for queue in queues]
        return self._keys.clustered and all([await self._wire.command(key, "HEXISTS", key, "e") for key in counters])

    async def _unlisted(self, queues: Iterable[str]) -> list[str]:
        """Those of them that are not on the list."""
        names = sorted(queues)
        listed = await self._wire.command(self._keys.queues, "SMISMEMBER", self._keys.queues, *names)
        return [name for name, there in zip(names, listed, strict=True) if not there]

    async def relist(self) -> None:
        """Put queues back on the list that an operator dropped by hand, for example with FLUSHALL.

        Queues without counters are forgotten here, and the next enqueue puts them on the list.
        """
        with suppress(StoreError):  # the caller may only want to read, or may want nothing of the node of the list
            if not self.registered or not (gone := await self._unlisted(self.registered)):
                return
            counted, silent = await self._client.survey(gone, "counted")
            if counted:
                await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *counted)
            if silent is None:
                self.registered.difference_update(set(gone) - counted.keys())

    # ── rules on a cluster ──────────────────────────────────────────────────

    async def spread_rules(self) -> None:
        """On a cluster every queue gets its copy of the rules that changed."""
        if self._keys.clustered:
            await self.follow(await self.names())

    async def follow(self, queues: Iterable[str]) -> None:
        """On a cluster each queue has its own copy of the rules and of the tenants that are paused."""
        names = sorted(queues)
        if not self._keys.clustered or not names:
            return
        version, rules, tenants = await self._wire.run(scripts.RULES, self._keys.limits)
        if int(version):
            answers = await self._client.ask_each(scripts.FOLLOW, names, version, len(rules), *rules, *tenants)
            if missing := [name for name in names if name not in answers]:
                raise OutcomeUnknown(
                    f"the nodes of {', '.join(missing[:5])} do not answer: the rules and pauses there are the old ones; ask again"
                )
