"""Connections to one server: what they say in the server's protocol, and the pool that keeps them."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import hiredis

from headrace.errors import ConfigError
from headrace.store.redis.client import faults
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.packing import LARGE, packed, pieces
from headrace.store.redis.client.sleepers import Sleepers
from headrace.store.redis.client.url import Address

Reply = Any
"""What a server answers: bytes, int, None or lists of these; a refusal is an answer, too."""

Command = tuple[Any, ...]

CONNECT_TIMEOUT: Final = 5.0
_MOST_CONNECTIONS: Final = 64
_LAST_WORDS: Final = 1.0
"""Seconds that closing may take."""
_RESTED: Final = 5.0
"""Seconds after which a connection that is not used is closed; one is kept."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""Seconds, seconds and number of the system's probes on a silent connection: 11 s until a dead one is noticed."""
_UNHEARD: Final = 60_000
"""Milliseconds after which a bell expires that no sleeper took."""
MORE: Final = object()


class Follow(NamedTuple):
    """What a server does when a sleeper wakes, before the sleeper hears of it: sent along, it waits there."""

    command: Command
    """Gets the name of the sleeper's bell as its last word: that list is there when the sleeper is called off, and nothing is to be done."""
    unheard: Callable[[Reply], Awaitable[None]]
    """What to do about an answer that came when the sleeper had been called off."""


class Connection(asyncio.Protocol):
    """Commands go out in one write, and their answers come back in order: one caller at a time."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=Refused, notEnoughData=MORE)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answers: list[Reply] = []
        self._missing = 0
        self._reply: asyncio.Future[list[Reply]] | None = None
        self._broken: str | None = None
        self.heard = self._loop.time()
        """When the server last said something."""
        self.gone = self._loop.create_future()

    @property
    def fit(self) -> bool:
        """Whole, and in step: nothing is asked that was not answered."""
        return self._broken is None and not self._missing

    async def ask(self, commands: Sequence[Command], timeout: float) -> list[Reply]:
        """The answers to these. Raises Cut; after that, or when called off, the connection is fit no more."""
        assert self._transport is not None  # the pool asks only after the connection was made
        self._answers, self._missing = [], len(commands)
        last = commands[0][-1]
        if len(commands) > 1:
            self._transport.write(b"".join(map(packed, commands)))
        elif isinstance(last, bytes) and len(last) >= LARGE:
            self._transport.writelines(pieces(commands[0]))
        else:
            self._transport.write(packed(commands[0]))
        return await self.answers(timeout)

    async def answers(self, timeout: float) -> list[Reply]:
        """The answers to what was asked last, also for a task that takes over from a cancelled caller."""
        if not self._missing:
            return self._answers
        if self._broken is not None:
            raise Cut(self._broken, sent=True)
        reply: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._reply = reply
        alarm = self._loop.call_later(timeout, self._fail, f"no answer within {timeout:g} s")
        try:
            return await reply
        finally:
            alarm.cancel()

    async def greet(self, address: Address, timeout: float) -> None:
        """Log in, and choose the database."""
        commands = greeting(address)
        try:
            answers = await self.ask(commands, timeout)
        except Cut:
            # A server that takes no more connections says so and hangs up.
            answers = self._answers[:1]
            if not answers or not isinstance(answers[0], Refused):
                raise
        welcomed(answers, len(commands))

    def close(self, *, at_once: bool = False) -> None:
        if self._transport is None:
            return
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()

    # ── called by the event loop ────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent
        keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        reader, answers = self._reader, self._answers
        try:
            reader.feed(data)
            while (answer := reader.gets()) is not MORE:
                answers.append(answer)
                self._missing -= 1
        except hiredis.ProtocolError as error:
            self._break(str(error))
            return
        self.heard = self._loop.time()
        if self._missing < 0:
            self._break("it sent an answer without a question")
        elif not self._missing and self._reply is not None and not self._reply.done():
            self._reply.set_result(answers)

    def eof_received(self) -> None:
        # The transport closes itself, and reports it one turn of the loop later. No call may use it in between.
        self._fail("the server hung up")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "the server hung up")
        if not self.gone.done():
            self.gone.set_result(None)

    def _break(self, why: str) -> None:
        self._fail(why)
        self.close(at_once=True)

    def _fail(self, why: str) -> None:
        self._broken = self._broken or why
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Cut(why, sent=True))


class Pool:
    """Connections to one server, made when needed, kept when idle."""

    def __init__(self, host: str, port: int, address: Address) -> None:
        self.where = f"{host}:{port}"
        self._host, self._port, self._address = host, port, address
        self._idle: list[Connection] = []
        self._turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._open: set[Connection] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._sleepers: dict[str, Sleepers] = {}
        self._closing_rested: asyncio.TimerHandle | None = None

    async def ask(self, commands: Sequence[Command], within: float | None = None) -> list[Reply]:
        """Send these in one go; the answers, a refusal being one, too. Raises Cut, or Refused where none is let in.

        `within`: seconds for each step of a call that cannot wait, such as a heartbeat. It waits for no other call's turn.
        """
        if within is not None:
            return await self._exchange(commands, min(within, self._address.timeout))
        async with self._turns:
            return await self._exchange(commands, self._address.timeout)

    async def block(self, commands: Sequence[Command], timeout: float) -> list[Reply]:
        """The same for commands that the server may answer so much later, beside the turns of others."""
        return await self._exchange(commands, self._address.timeout, timeout)

    async def _exchange(self, commands: Sequence[Command], patience: float, more: float = 0.0) -> list[Reply]:
        connection = self._idle_one() or await self._connect(patience)
        began = asyncio.get_running_loop().time()
        try:
            answers = await connection.ask(commands, patience + more)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, Cut):
                self._distrust(began)
            raise
        self._rest(connection, answers)
        return answers

    def _rest(self, connection: Connection, answers: list[Reply]) -> None:
        """A connection is free. One to a server that has become a replica is closed, for its name may lead elsewhere now."""
        if any(isinstance(answer, Refused) and faults.demoted(answer) for answer in answers):
            self._drop(connection)
            self._distrust(float("inf"))
            return
        self._idle.append(connection)
        if self._closing_rested is None and len(self._idle) > 1:
            self._closing_rested = asyncio.get_running_loop().call_later(_RESTED, self._close_rested)

    def _distrust(self, before: float) -> None:
        """One connection broke: free ones that have not been heard from since go with it, or each would be tried in turn."""
        for connection in [each for each in self._idle if each.heard < before]:
            self._idle.remove(connection)
            self._drop(connection)

    def _close_rested(self) -> None:
        """The one that was used last is last in the list."""
        self._closing_rested = None
        loop = asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0].heard < loop.time() - _RESTED:
            self._drop(self._idle.pop(0))
        if len(self._idle) > 1:
            self._closing_rested = loop.call_later(_RESTED, self._close_rested)

    def sleepers(self, group: str) -> Sleepers:
        """The waits on lists that one command may name together."""
        found = self._sleepers.get(group)
        if found is None:
            found = self._sleepers[group] = Sleepers(self, f"{group}:{secrets.token_hex(8)}")
        return found

    def send_off(self, commands: Sequence[Command]) -> None:
        """Send these in the background. No caller waits for the answers."""

        async def say() -> None:
            with suppress(Cut, Refused):
                await self.ask(commands)

        self._send_off(say())

    def put_back(self, key: str) -> None:
        """An element that was taken from a list is for another caller."""
        self.send_off(put_back(key))

    async def pop(self, keys: Sequence[str], timeout: float, follow: Follow) -> list[Reply]:
        """An element of the first of these lists that has one, None: the time is up; then the answer to what follows.

        It takes no turn, because a sleeping worker must not take a connection from a busy one. A sleeper that is cancelled
        may have taken an element before its answer arrived. A bell of its own wakes it, and what it took is put back.
        """
        bell = f"{keys[0]}:{secrets.token_hex(8)}"
        commands: list[Command] = [("BLPOP", *keys, bell, f"{timeout:.3f}"), (*follow.command, bell)]
        connection = self._idle_one() or await self._connect()
        began = asyncio.get_running_loop().time()
        try:
            answers = await connection.ask(commands, timeout + self._address.timeout)
        except asyncio.CancelledError:
            self._send_off(self._call_off(connection, bell, follow))
            raise
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, Cut):
                self._distrust(began)
            raise
        self._rest(connection, answers)
        return answers

    async def _call_off(self, connection: Connection, bell: str, follow: Follow) -> None:
        try:
            # One for the sleeper to take; the other stays, and tells what follows not to.
            [rung, _] = await self.ask([("RPUSH", bell, 1, 1), ("PEXPIRE", bell, _UNHEARD)])
            if isinstance(rung, Refused):
                raise rung
            answer, followed = await connection.answers(self._address.timeout)
            taken = cast("list[bytes]", answer)[0].decode() if isinstance(answer, list) else bell
            if isinstance(followed, list):
                # It was done before, and has seen to what was taken.
                await self.ask([("DEL", bell)])
                await follow.unheard(followed)
            else:
                await self.ask([("DEL", bell), *(() if taken == bell else put_back(taken))])
        except BaseException as error:
            self._drop(connection)
            if not isinstance(error, (Cut, Refused)):
                raise
        else:
            self._rest(connection, [])

    def _send_off(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand, name="headrace-errand")
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.fit:
                return connection
            self._drop(connection)
        return None

    async def _connect(self, within: float = CONNECT_TIMEOUT) -> Connection:
        connection, address = Connection(), self._address
        self._open.add(connection)
        seconds = min(CONNECT_TIMEOUT, address.timeout, within)
        try:
            # The greeting, too, must end: a server may take connections and be silent.
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls_context(address))
                await connection.greet(address, seconds)
        except (OSError, TimeoutError, Cut) as error:
            self._drop(connection)
            if why := faults.distrust(error):
                # The transport of a failed handshake goes in the turns that follow.
                await asyncio.sleep(0.01)
                raise faults.Untrusted(why) from error
            raise Cut(str(error) or "no answer", sent=False) from error
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close(at_once=True)

    async def finish_errands(self) -> None:
        for sleepers in self._sleepers.values():
            await sleepers.close()
        if self._errands:
            await asyncio.wait(self._errands, timeout=_LAST_WORDS)
        for errand in list(self._errands):
            errand.cancel()

    async def close(self) -> None:
        await self.finish_errands()
        if self._closing_rested is not None:
            self._closing_rested.cancel()
        self._idle.clear()
        for connection in self._open:
            connection.close()
        # TLS sends a last message when it closes, and needs the loop for it.
        if going := [connection.gone for connection in self._open]:
            await asyncio.wait(going, timeout=_LAST_WORDS)
        self._open.clear()


def put_back(key: str) -> tuple[Command, ...]:
    """An element into a list that needs one only."""
    return ("RPUSH", key, 1), ("LTRIM", key, 0, 0)


def greeting(address: Address) -> list[Command]:
    """The first commands of a new connection: user and password, database, and last the name of the connection."""
    commands: list[Command] = []
    if address.password or address.username:
        commands.append(("AUTH", *filter(None, (address.username,)), address.password or ""))
    if address.db:
        commands.append(("SELECT", address.db))
    return [*commands, ("CLIENT", "SETNAME", "headrace")]


def welcomed(answers: Sequence[Reply], count: int) -> None:
    """Raise the first refusal among the answers to a greeting. A user need not have the right to set the name."""
    for number, answer in enumerate(answers, 1):
        if isinstance(answer, Refused) and not (number == count and faults.forbidden(answer)):
            raise answer


def keep_alive(wire: socket.socket) -> None:
    """Let the system notice a dead peer."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:  # not every system has them
            wire.setsockopt(socket.IPPROTO_TCP, option, value)


def tls_context(address: Address) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    named = f"tls_ca={address.tls_ca}"
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        if address.tls_cert is not None:
            named = f"tls_cert={address.tls_cert}" + (f" with tls_key={address.tls_key}" if address.tls_key else "")
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except OSError as error:
        raise ConfigError(f"{named} in the Redis URL cannot be used: {error.strerror or error}") from error
    return context
