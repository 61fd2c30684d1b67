"""Calls to one server: scripts by their digest, repeated after a lost answer where that is safe, and after passing refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from headrace.errors import HeadraceError, OutcomeUnknown, StoreError, StoreFull, Unavailable
from headrace.store.redis.client import faults
from headrace.store.redis.client.connection import Command, Follow, Make, Pool, Reply, put_back
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.client.url import Address

T = TypeVar("T")
Unheard = Callable[[Reply], Awaitable[None]]
Asked = tuple[str, Sequence[Command]]
"""Commands for the server of a key."""

ONE_NODE: Final = (Unavailable, OutcomeUnknown, StoreFull)
"""Errors of one node of a cluster. The other nodes go on."""

PATIENCE: Final = 2.0
"""Seconds for which the client repeats a command whose refusal passes by itself, before it raises."""


class Wire:
    """The way to one server. Sentinel and a cluster extend it."""

    clustered = False
    kind: type[Pool] = Pool

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pools: dict[tuple[str, int], Pool] = {}

    # ── which server ────────────────────────────────────────────────────────

    async def pool_of(self, key: str) -> Pool:
        """The server that holds this key."""
        del key
        return self.pool(*self.address.hosts[0])

    async def node_of(self, key: str) -> tuple[str, int] | None:
        """On a cluster: the node that holds this key, if that is known."""
        del key
        return None

    async def all_pools(self) -> list[Pool]:
        """Every server that holds keys."""
        return [await self.pool_of("")]

    async def look_again(self) -> None:
        """Find out again which server holds what. One server needs nothing."""

    def pool(self, host: str, port: int) -> Pool:
        pool = self._pools.get((host, port))
        if pool is None:
            pool = self._pools[host, port] = self.kind(host, port, self.address)
        return pool

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            await pool.finish_errands()  # an errand may send commands through this object
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()

    # ── asking ──────────────────────────────────────────────────────────────

    async def run(self, script: Script, keys: Sequence[str], *args: Any, repeat: bool = True) -> Reply:
        """Run a script on keys of one server. Raises headrace's errors. `repeat`: it may be run again after a lost answer."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        [answer] = await self.command_many([command], keys[0], script, repeat=repeat)
        return answer

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], tuple[Any, ...]]]) -> list[Reply]:
        """Run a script once per (keys, args); it may be run again after a lost answer."""
        commands = [("EVALSHA", script.sha, len(keys), *keys, *args) for keys, args in calls]
        return await self.command_many(commands, calls[0][0][0], script) if commands else []

    async def ask_each(
        self, asks: Sequence[Asked], script: Script | None = None, *, within: float | None = None
    ) -> list[list[Reply] | StoreError]:
        """Send commands that may be repeated, by key. On a cluster the error of a node stands in the place of its answers.

        Raises if no node answers. `within`: as of `Pool.ask`.
        """
        if not asks:
            return []
        commands = [command for _, some in asks for command in some]
        answers = iter(await self.command_many(commands, asks[0][0], script, within=within))
        return [[next(answers) for _ in some] for _, some in asks]

    async def time(self, key: str) -> Reply:
        """The server's clock; on a cluster that of the node of this key, if it answers."""
        return await self.command(key, "TIME")

    async def command(self, key: str, *command: Any) -> Reply:
        """A plain command that may be repeated."""
        [answer] = await self.command_many([command], key)
        return answer

    async def elements(self, key: str, first: int, last: int, make: Callable[[memoryview], T]) -> list[T]:
        """What `make` makes of these elements of a list, which may be large: its bytes are there until it returns."""
        elements: list[T]
        [elements] = await self.command_many([("LRANGE", key, first, last)], key, make=make)
        return elements

    async def command_many(
        self,
        commands: Sequence[tuple[Any, ...]],
        key: str,
        script: Script | None = None,
        *,
        repeat: bool = True,
        within: float | None = None,
        make: Make | None = None,
    ) -> list[Reply]:
        """Send commands to the server of `key` in one round trip. Repeats those whose refusal passes, and raises the first error."""
        patience = Patience()
        answers: list[Reply] = [None] * len(commands)
        left = list(range(len(commands)))
        while left:
            pool: Pool | None = None
            try:
                pool = await self.pool_of(key)
                got = await pool.ask([commands[n] for n in left], within, make)
            except (Cut, Refused) as error:
                if isinstance(error, Cut):
                    await self.look_again()
                    if error.sent and repeat and not patience.doubtful:
                        patience.doubtful = True
                        continue
                elif faults.passes(error) and await patience.left():
                    continue
                raise patience.verdict(error, pool.where if pool else self.address.shown) from error
            again: list[int] = []
            for n, answer in zip(left, got, strict=True):
                answers[n] = answer
                if isinstance(answer, Exception):
                    again.append(n)
            if again:
                await self._recover(answers[again[0]], pool, script, patience)
            left = again
        return answers

    async def _recover(self, error: Exception, pool: Pool, script: Script | None, patience: Patience) -> None:
        """Remove the cause of an error, so that the caller repeats its commands, or raise."""
        if script is not None and faults.unknown_script(error):
            loaded = await self._load(script, pool)
            if not isinstance(loaded, Exception):
                # This also holds when waiting for the server that had to load the script used up all patience.
                if patience.once("script") or await patience.left():
                    return
            else:
                error = loaded
        if faults.moved(error):
            await self.look_again()
            if await patience.left():
                return
        elif faults.passes(error) and await patience.left():
            return
        raise patience.verdict(error, pool.where) from error

    async def _load(self, script: Script, pool: Pool) -> Reply:
        """Send the source of a script. If the connection breaks, nothing is done, because the server refused the call before."""
        try:
            [loaded] = await pool.ask([("SCRIPT", "LOAD", script.source)])
        except (Cut, Refused) as error:
            await self.look_again()
            lost = Cut(str(error), sent=False) if isinstance(error, Cut) else error
            raise faults.translated(lost, pool.where) from error
        return loaded

    async def wait(self, keys: Sequence[str], timeout: float) -> list[str]:
        """Block until one of these lists has an element and take it, or until the time is up. Answers the names of those lists."""
        return await self._wait(self.group(keys[0]), keys, timeout)

    async def wait_apart(self, key: str, timeout: float) -> list[str]:
        """As `wait`, for one list on another connection. A worker that no longer waits for jobs still learns of this list."""
        return await self._wait(f"{self.group(key)}:due", [key], timeout)

    async def _wait(self, group: str, keys: Sequence[str], timeout: float) -> list[str]:
        try:
            pool = await self.pool_of(keys[0])
            taken = await pool.sleepers(group).wait(keys, timeout)
        except (Cut, Refused) as error:
            await self.look_again()
            raise faults.translated(error, self.address.shown) from error
        return [] if taken is None else [taken]

    def group(self, key: str) -> str:
        """The group of a key. One command may name several keys of a group, and keys that begin with its name are on the same node."""
        del key
        return f"{self.address.prefix}:w"

    async def wait_and_run(
        self, keys: Sequence[str], timeout: float, script: Script, named: Sequence[str], *args: Any, unheard: Unheard
    ) -> tuple[list[str], Reply]:
        """As `wait`, followed by a script that gets the sleeper's bell as its last argument. None: the server refused the script."""
        command = ("EVALSHA", script.sha, len(named), *named, *args)
        taken, answer = await self._pop(keys, timeout, Follow(command, unheard))
        return _names(taken), None if isinstance(answer, Exception) else answer

    async def _pop(self, keys: Sequence[str], timeout: float, follow: Follow) -> list[Reply]:
        try:
            pool = await self.pool_of(keys[0])
            answers = await pool.pop(keys, timeout, follow)
        except (Cut, Refused) as error:
            await self.look_again()
            raise faults.translated(error, self.address.shown) from error
        if isinstance(answers[0], Exception) and not isinstance(answers[-1], list):
            if faults.moved(answers[0]):
                await self.look_again()
            raise faults.translated(answers[0], self.address.shown)
        return answers

    async def lay_back(self, keys: Sequence[str]) -> None:
        """Put one element back into each of these lists."""
        for key in keys:
            await self.command_many(put_back(key), key)


def _names(taken: Reply) -> list[str]:
    """The list that an element was taken from, if one was."""
    return [cast("list[bytes]", taken)[0].decode()] if isinstance(taken, list) else []


class Patience:
    """Decides how long the client repeats a command, with growing pauses of random length."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._until = asyncio.get_running_loop().time() + seconds
        self._pause = 0.01
        self._tried: set[str] = set()
        self.doubtful = False
        """A try was sent whose answer was lost."""

    def verdict(self, error: Exception, where: str) -> HeadraceError:
        """The error of the last try as one of headrace's.

        An earlier try whose answer was lost may have been carried out, even if the last one was refused or did not reach a server.
        """
        given = faults.translated(error, where)
        if self.doubtful and isinstance(given, ONE_NODE):
            return faults.translated(Cut(str(error), sent=True), where)
        return given

    async def left(self) -> bool:
        """Whether the client may repeat the command. The first repeat is immediate, the others follow after pauses."""
        if self.once("try"):
            return True
        if asyncio.get_running_loop().time() >= self._until:
            return False
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, 0.25)
        return True

    def once(self, what: str) -> bool:
        """True for the first call with this name."""
        if what in self._tried:
            return False
        self._tried.add(what)
        return True
