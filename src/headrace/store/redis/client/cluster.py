"""A cluster: every queue is on the node that holds its slot, and work on the other nodes continues when one is down."""

from __future__ import annotations

import asyncio
import logging
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import StoreError
from headrace.store.redis.client import faults
from headrace.store.redis.client.connection import CONNECT_TIMEOUT, Command, Connection, Follow, Make, Pool, Reply
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.client.url import Address
from headrace.store.redis.client.wire import ONE_NODE, Asked, Wire

_log: Final = logging.getLogger(__name__)

_LATE: Final = 0.25
"""Seconds by which one node may report later than another that the time is up."""


class Node(Pool):
    """A node of a cluster. After a failed attempt to connect, calls fail at once for three times as long as it took.

    An unreachable node therefore delays work on the other nodes for at most a quarter of the time. An attempt that the
    node refuses at once takes no time, so the next call tries again at once.
    """

    _rests_until = float("-inf")
    _why = ""

    async def ask(
        self, commands: Sequence[Command], within: float | None = None, make: Make | None = None
    ) -> list[Reply]:
        self._check()
        return await super().ask(commands, within, make)

    async def block(self, commands: Sequence[Command], timeout: float) -> list[Reply]:
        self._check()
        return await super().block(commands, timeout)

    async def pop(self, keys: Sequence[str], timeout: float, follow: Follow) -> list[Reply]:
        self._check()
        return await super().pop(keys, timeout, follow)

    async def _connect(self, within: float = CONNECT_TIMEOUT) -> Connection:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await super()._connect(within)
        except Cut as error:
            self._rests_until, self._why = loop.time() + 3 * (loop.time() - began), str(error)
            raise

    def _check(self) -> None:
        if asyncio.get_running_loop().time() < self._rests_until:
            raise Cut(self._why, sent=False)


class ClusterWire(Wire):
    """Every queue on the node that holds its slot."""

    clustered = True
    kind = Node

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._slots: list[tuple[str, int] | None] = []
        self._looking = asyncio.Lock()
        self._silent: set[tuple[str, int]] = set()
        """Nodes that the log reported as down."""

    async def pool_of(self, key: str) -> Pool:
        node = await self._held_by(key)
        if node is None:
            await self.look_again()
            raise Refused("CLUSTERDOWN no node holds this slot")
        return self.pool(*node)

    async def _held_by(self, key: str) -> tuple[str, int] | None:
        while not self._slots:
            await self._learn()
        return self._slots[slot_of(key)]

    async def node_of(self, key: str) -> tuple[str, int] | None:
        try:
            return await self._held_by(key)
        except (Cut, Refused):
            return None

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], tuple[Any, ...]]]) -> list[Reply]:
        return list(await asyncio.gather(*(self.run(script, keys, *args) for keys, args in calls)))

    # ── nodes that answer ───────────────────────────────────────────────────

    def group(self, key: str) -> str:
        return key  # a command may name keys of one slot only, and each queue has its own

    async def ask_each(
        self, asks: Sequence[Asked], script: Script | None = None, *, within: float | None = None
    ) -> list[list[Reply] | StoreError]:
        answers: list[list[Reply] | StoreError] = [[]] * len(asks)
        by_node: dict[tuple[str, int] | None, list[int]] = {}
        for number, (key, _) in enumerate(asks):
            try:
                node = await self._held_by(key)
            except (Cut, Refused) as error:
                raise faults.translated(error, self.address.shown) from error
            by_node.setdefault(node, []).append(number)
        await asyncio.gather(
            *(self._ask_node(node, asks, numbers, script, answers, within) for node, numbers in by_node.items())
        )
        if answers and all(isinstance(answer, StoreError) for answer in answers):
            raise next(answer for answer in answers if isinstance(answer, StoreError))
        return answers

    async def _ask_node(
        self,
        node: tuple[str, int] | None,
        asks: Sequence[Asked],
        numbers: list[int],
        script: Script | None,
        answers: list[list[Reply] | StoreError],
        within: float | None,
    ) -> None:
        """Send all commands for one node in one round trip. Commands that it refuses are repeated one by one, as `command_many` does."""
        left = list(numbers)
        if node is not None:
            try:
                commands = [command for n in numbers for command in asks[n][1]]
                replies = iter(await self.pool(*node).ask(commands, within))
            except (Cut, Refused):
                await self.look_again()
            else:
                for n in numbers:
                    answers[n] = own = [next(replies) for _ in asks[n][1]]
                    if not any(isinstance(reply, Exception) for reply in own):
                        left.remove(n)
        if len(left) == len(numbers):
            # The node answered nothing. If the node itself is at fault, one error holds for all its queues.
            first = left.pop(0)
            answers[first] = trouble = await self._ask_alone(asks[first], script, within)
            if isinstance(trouble, StoreError):
                self._said_nothing(node, trouble)
                for n in [n for n in left if await self.node_of(asks[n][0]) in (node, None)]:
                    answers[n] = trouble
                    left.remove(n)
            else:
                self._said_something(node)
        else:
            self._said_something(node)
        alone = await asyncio.gather(*(self._ask_alone(asks[n], script, within) for n in left))
        for n, answer in zip(left, alone, strict=True):
            answers[n] = answer

    async def _ask_alone(self, asked: Asked, script: Script | None, within: float | None) -> list[Reply] | StoreError:
        key, commands = asked
        try:
            return await self.command_many(commands, key, script, within=within)
        except ONE_NODE as error:
            return error

    def _said_nothing(self, node: tuple[str, int] | None, error: StoreError) -> None:
        if node is not None and node not in self._silent:
            self._silent.add(node)
            _log.warning("the queues on %s:%d are left out until it answers: %s", *node, error)

    def _said_something(self, node: tuple[str, int] | None) -> None:
        if node in self._silent:
            self._silent.discard(node)
            _log.info("%s:%d answers again", *node)

    async def wait(self, keys: Sequence[str], timeout: float) -> list[str]:
        # Queues are in different slots, so each queue has its own sleeper. The first one that takes an element ends the wait.
        # Sleepers on a node that is down, and those whose time is up, do not cancel the others.
        sleepers = [asyncio.ensure_future(super(ClusterWire, self).wait([key], timeout)) for key in keys]
        asleep, heard = set(sleepers), False
        try:
            while True:
                late = _LATE if heard else None
                done, asleep = await asyncio.wait(asleep, timeout=late, return_when=asyncio.FIRST_COMPLETED)
                answered = [sleeper for sleeper in done if not isinstance(sleeper.exception(), ONE_NODE)]
                taken = [key for sleeper in answered for key in sleeper.result()]
                heard = heard or bool(answered)
                if taken or (heard and not (asleep and done)):
                    return taken
                if not asleep:
                    return done.pop().result()
        finally:
            for sleeper in sleepers:
                sleeper.cancel()
            await asyncio.gather(*sleepers, return_exceptions=True)

    async def time(self, key: str) -> Reply:
        try:
            return await super().time(key)
        except ONE_NODE:
            for pool in await self._all_that_may_answer():
                try:
                    [answer] = await pool.ask([("TIME",)])
                except (Cut, Refused):
                    continue
                if not isinstance(answer, Exception):
                    return answer
            raise

    async def _all_that_may_answer(self) -> list[Pool]:
        try:
            return await self.all_pools()
        except (Cut, Refused):
            return []

    async def all_pools(self) -> list[Pool]:
        while not self._slots:
            await self._learn()
        return [self.pool(*node) for node in sorted({node for node in self._slots if node is not None})]

    async def look_again(self) -> None:
        self._slots = []

    async def _learn(self) -> None:
        async with self._looking:
            if self._slots:
                return
            problem: Exception = Cut("no node answers", sent=False)
            known = [*self._pools, *self.address.hosts]
            for host, port in dict.fromkeys(known):
                try:
                    [answer] = await self.pool(host, port).ask([("CLUSTER", "SLOTS")])
                except (Cut, Refused) as error:
                    if faults.unwelcome(error):
                        raise
                    problem = error
                    continue
                if isinstance(answer, Exception):
                    problem = answer
                    continue
                self._slots = _slots(answer, host)
                return
            if isinstance(problem, Cut):
                raise Cut(str(problem), sent=False)
            raise problem


def _slots(answer: list[Any], asked: str) -> list[tuple[str, int] | None]:
    """The node that holds each slot."""
    slots: list[tuple[str, int] | None] = [None] * 16384
    for first, last, primary, *_ in answer:
        node = (_host(primary, asked), int(primary[1]))
        slots[first : last + 1] = [node] * (last - first + 1)
    return slots


def _host(node: list[Any], asked: str) -> str:
    """The host of a node. Without a name it is the host that answered; for the name `?` the address is among the details."""
    name = (node[0] or b"").decode()
    if name == "?" and len(node) > 3:
        details: dict[bytes, bytes] = dict(zip(node[3][::2], node[3][1::2], strict=False))
        return details.get(b"ip", b"").decode() or asked
    return name or asked


def slot_of(key: str) -> int:
    """The slot of a key. If the key has text in braces, the text in the first braces decides; else the whole key does."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else key).encode(), 0) % 16384
