"""The way to the servers: connections, scripts, waiting out what passes; one server, Sentinel or a cluster."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from headrace.store.redis import faults
from headrace.store.redis.faults import Cut
from headrace.store.redis.scripts import Script
from headrace.store.redis.url import Address

Reply = Any
"""What a server answers: bytes, int, None or lists of these; the client library types it so, too."""

# Its stub says neither what it answers nor that it takes any number of words.
_packed: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

PATIENCE: Final = 2.0
"""Seconds to wait out what passes by itself, before the caller hears of it."""

_CONNECT_TIMEOUT: Final = 5.0
_MOST_CONNECTIONS: Final = 64


class Pool:
    """Connections to one server, made when needed, kept when idle."""

    def __init__(self, host: str, port: int, address: Address) -> None:
        self.where = f"{host}:{port}"
        self._host, self._port, self._address = host, port, address
        self._idle: list[Connection] = []
        self._turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._open: set[Connection] = set()

    async def ask(self, commands: Sequence[tuple[Any, ...]], *, timeout: float | None = None) -> list[Reply]:
        """Send these in one go; the answers, an error being an answer, too. Raises Cut."""
        async with self._turns:
            connection = await self._take()
            try:
                return await self._talk(connection, commands, timeout or self._address.timeout)
            except BaseException:
                await self._drop(connection)
                raise

    async def ask_blocking(self, command: tuple[Any, ...], timeout: float) -> list[Reply]:
        """The same for a command that may sleep on the server."""
        connection = await self._take()
        try:
            return await self._talk(connection, [command], timeout)
        except BaseException:
            await self._drop(connection)
            raise

    async def _talk(self, connection: Connection, commands: Sequence[tuple[Any, ...]], timeout: float) -> list[Reply]:
        try:
            async with asyncio.timeout(timeout):
                await connection.send_packed_command(b"".join(map(_packed, commands)), check_health=False)
                answers = [await self._answer(connection) for _ in commands]
        except (OSError, RedisConnectionError, RedisTimeoutError, TimeoutError) as error:
            raise Cut(str(error) or f"no answer within {timeout:g} s", sent=True) from error
        self._idle.append(connection)
        return answers

    async def _answer(self, connection: Connection) -> Reply:
        try:
            return cast("Reply", await connection.read_response(timeout=math.inf))
        except ResponseError as error:
            return error
        except RedisConnectionError as error:
            # LOADING comes as a connection error; the connection itself is fine.
            if faults.passes(error):
                return error
            raise

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            try:
                # Something to read before anything was asked: the server has gone, or we are out of step.
                if connection.is_connected and not await connection.can_read():
                    return connection
            except (OSError, RedisError):
                pass
            await self._drop(connection)
        return await self._connect()

    async def _connect(self) -> Connection:
        connection = make_connection(self._host, self._port, self._address)
        self._open.add(connection)
        try:
            # The greeting, too, must end: a server may take connections and be silent.
            async with asyncio.timeout(min(_CONNECT_TIMEOUT, self._address.timeout)):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it bare
        except (AuthenticationError, ResponseError):
            await self._drop(connection)
            raise
        except (OSError, RedisError, TimeoutError) as error:
            await self._drop(connection)
            if faults.passes(error):
                raise
            if why := faults.distrust(error):
                # The transport of a failed handshake goes in the turns that follow.
                await asyncio.sleep(0.01)
                raise faults.Untrusted(why) from error
            raise Cut(str(error) or "no answer", sent=False) from error
        except BaseException:
            await self._drop(connection)
            raise
        return connection

    async def _drop(self, connection: Connection, *, nowait: bool = True) -> None:
        self._open.discard(connection)
        await connection.disconnect(nowait=nowait)

    async def close(self) -> None:
        self._idle.clear()
        for connection in list(self._open):
            # TLS says goodbye, and needs the loop for it.
            await self._drop(connection, nowait=not self._address.tls)


def make_connection(host: str, port: int, address: Address) -> Connection:
    """Not yet connected."""
    settings: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": None,
        "socket_connect_timeout": _CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
        "client_name": "headrace",
    }
    if not address.tls:
        return Connection(**settings)
    return SSLConnection(
        **settings,
        ssl_cert_reqs=ssl.CERT_REQUIRED,
        ssl_check_hostname=True,
        ssl_ca_certs=address.tls_ca,
        ssl_certfile=address.tls_cert,
        ssl_keyfile=address.tls_key,
    )


class Wire:
    """One server, and what all ways have in common."""

    clustered = False

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pools: dict[tuple[str, int], Pool] = {}

    # ── which server ────────────────────────────────────────────────────────

    async def pool_of(self, key: str) -> Pool:
        """The server that holds this key."""
        del key
        return self.pool(*self.address.hosts[0])

    async def all_pools(self) -> list[Pool]:
        """Every server that holds keys."""
        return [await self.pool_of("")]

    async def look_again(self) -> None:
        """Servers may have changed their parts."""

    def pool(self, host: str, port: int) -> Pool:
        found = self._pools.get((host, port))
        if found is None:
            found = self._pools[host, port] = Pool(host, port, self.address)
        return found

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()

    # ── asking ──────────────────────────────────────────────────────────────

    async def run(self, script: Script, keys: Sequence[str], *args: Any, repeat: bool = True) -> Reply:
        """Run a script on keys of one server; raises in our words. `repeat`: it may be run again after a lost answer."""
        command = ("EVALSHA", script.sha, len(keys), *keys, *args)
        [answer] = await self.command_many([command], keys[0], script, repeat=repeat)
        return answer

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], tuple[Any, ...]]]) -> list[Reply]:
        """Run a script once per (keys, args); it may be run again after a lost answer."""
        commands = [("EVALSHA", script.sha, len(keys), *keys, *args) for keys, args in calls]
        return await self.command_many(commands, calls[0][0][0], script) if commands else []

    async def command(self, key: str, *command: Any) -> Reply:
        """A plain command that may be repeated."""
        [answer] = await self.command_many([command], key)
        return answer

    async def command_many(
        self, commands: Sequence[tuple[Any, ...]], key: str, script: Script | None = None, *, repeat: bool = True
    ) -> list[Reply]:
        """Commands for the server of `key`, in one go; waits out what passes, raises the first error in our words."""
        patience = Patience()
        answers: list[Reply] = [None] * len(commands)
        left = list(range(len(commands)))
        while left:
            pool: Pool | None = None
            try:
                pool = await self.pool_of(key)
                got = await pool.ask([commands[n] for n in left])
            except (Cut, RedisError) as error:
                if isinstance(error, Cut):
                    await self.look_again()
                    if error.sent and repeat and patience.once("cut"):
                        continue
                    # Sent once is sent, even if the second time nobody was there.
                    error.sent = error.sent or not patience.once("cut")
                elif faults.passes(error) and await patience.left():
                    continue
                raise faults.translated(error, pool.where if pool else self.address.shown) from error
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
        """Make it worth asking again, or raise."""
        if script is not None and faults.unknown_script(error):
            loaded = await self._load(script, pool)
            if not isinstance(loaded, Exception):
                if await patience.left():
                    return
            else:
                error = loaded
        if faults.moved(error):
            await self.look_again()
            if await patience.left():
                return
        elif faults.passes(error) and await patience.left():
            return
        raise faults.translated(error, pool.where) from error

    async def _load(self, script: Script, pool: Pool) -> Reply:
        """Send a script whole. Should the connection break: what was asked before was refused, so nothing is done."""
        try:
            [loaded] = await pool.ask([("SCRIPT", "LOAD", script.source)])
        except (Cut, RedisError) as error:
            await self.look_again()
            lost = Cut(str(error), sent=False) if isinstance(error, Cut) else error
            raise faults.translated(lost, pool.where) from error
        return loaded

    async def wait(self, keys: Sequence[str], timeout: float) -> bool:
        """Block until one of these lists has an element and take it, or until the time is up."""
        return await self._block(keys, timeout)

    async def _block(self, keys: Sequence[str], timeout: float) -> bool:
        try:
            pool = await self.pool_of(keys[0])
            # Beside the others: whoever sleeps must not take a connection from whoever works.
            [answer] = await pool.ask_blocking(("BLPOP", *keys, f"{timeout:.3f}"), timeout + self.address.timeout)
        except (Cut, RedisError) as error:
            await self.look_again()
            raise faults.translated(error, self.address.shown) from error
        if isinstance(answer, Exception):
            if faults.moved(answer):
                await self.look_again()
            raise faults.translated(answer, self.address.shown)
        return answer is not None


class Patience:
    """How long to go on trying: with growing, jittered pauses."""

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._until = asyncio.get_running_loop().time() + seconds
        self._pause = 0.01
        self._said: set[str] = set()

    async def left(self) -> bool:
        """Is it worth another try? The first is at once, then after pauses."""
        if self.once("try"):
            return True
        if asyncio.get_running_loop().time() >= self._until:
            return False
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, 0.25)
        return True

    def once(self, what: str) -> bool:
        """True the first time."""
        if what in self._said:
            return False
        self._said.add(what)
        return True


class SentinelWire(Wire):
    """The primary is whom the sentinels name."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: tuple[str, int] | None = None

    async def pool_of(self, key: str) -> Pool:
        del key
        if self._primary is None:
            self._primary = await self._discover()
        return self.pool(*self._primary)

    async def look_again(self) -> None:
        self._primary = None

    async def _discover(self) -> tuple[str, int]:
        problem = "no sentinel answers"
        for host, port in self.address.hosts:
            try:
                answer = await self._ask_sentinel(host, port)
            except (Cut, RedisError) as error:
                problem = f"{host}:{port}: {error}"
                continue
            if answer:
                return answer[0].decode(), int(answer[1])
            problem = f"the sentinel at {host}:{port} knows no {self.address.service!r}"
        raise Cut(problem, sent=False)

    async def _ask_sentinel(self, host: str, port: int) -> list[bytes] | None:
        ours = replace(self.address, db=0, username=None, password=self.address.sentinel_password)
        pool = Pool(host, port, ours)
        try:
            [answer] = await pool.ask([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)])
        finally:
            await pool.close()
        if isinstance(answer, Exception):
            raise answer
        found: list[bytes] | None = answer
        return found


class ClusterWire(Wire):
    """Every queue on the node that holds its slot."""

    clustered = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._slots: list[tuple[str, int] | None] = []
        self._looking = asyncio.Lock()

    async def pool_of(self, key: str) -> Pool:
        if not self._slots:
            await self._learn()
        node = self._slots[key_slot(key.encode())]
        if node is None:
            await self.look_again()
            raise ResponseError("CLUSTERDOWN no node holds this slot")
        return self.pool(*node)

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], tuple[Any, ...]]]) -> list[Reply]:
        return list(await asyncio.gather(*(self.run(script, keys, *args) for keys, args in calls)))

    async def wait(self, keys: Sequence[str], timeout: float) -> bool:
        # Queues live in different slots: one sleeper each, the first to wake ends the night.
        sleepers = [asyncio.ensure_future(self._block([key], timeout)) for key in keys]
        try:
            done, _ = await asyncio.wait(sleepers, return_when=asyncio.FIRST_COMPLETED)
            woken = [sleeper.result() for sleeper in done]
            return any(woken)
        finally:
            for sleeper in sleepers:
                sleeper.cancel()
            await asyncio.gather(*sleepers, return_exceptions=True)

    async def all_pools(self) -> list[Pool]:
        if not self._slots:
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
                except (Cut, RedisError) as error:
                    if isinstance(error, AuthenticationError):
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
    """By slot: the node that holds it."""
    slots: list[tuple[str, int] | None] = [None] * 16384
    for first, last, primary, *_ in answer:
        # An empty name is the node that was asked.
        node = (primary[0].decode() or asked, int(primary[1]))
        slots[first : last + 1] = [node] * (last - first + 1)
    return slots


def make_wire(address: Address) -> Wire:
    if address.kind == "cluster":
        return ClusterWire(address)
    return SentinelWire(address) if address.kind == "sentinel" else Wire(address)
