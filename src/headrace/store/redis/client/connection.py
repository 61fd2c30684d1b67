"""Connections to one server, and the pool that keeps them."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

import hiredis

from headrace.store.redis.client import faults
from headrace.store.redis.client.bulks import Bulks
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.handshake import greeting, keep_alive, tls_context, welcomed
from headrace.store.redis.client.packing import LARGE, packed, pieces
from headrace.store.redis.client.sleepers import Sleepers
from headrace.store.redis.client.url import Address

Reply = Any
"""The answer of a server: bytes, int, None, lists of these, or a refusal."""

Command = tuple[Any, ...]

Make = Callable[[memoryview], Any]
"""What becomes of an element of a list: see Bulks."""

CONNECT_TIMEOUT: Final = 5.0
_MOST_CONNECTIONS: Final = 64
_LAST_WORDS: Final = 1.0
"""Seconds that closing may take."""
_RESTED: Final = 5.0
"""Seconds after which a connection that is not used is closed; one is kept."""
_UNHEARD: Final = 60_000
"""Milliseconds after which a bell expires that no sleeper took."""
_PORTION: Final = 1 << 16
"""Bytes of answers that are read at once."""
MORE: Final = object()
"""Stands for an answer that has not arrived completely."""


class Follow(NamedTuple):
    """A command that the server runs when a sleeper wakes. It is sent together with the command that sleeps."""

    command: Command
    """Its last argument is the name of the sleeper's bell. If that list exists, the sleeper was cancelled and the command does nothing."""
    unheard: Callable[[Reply], Awaitable[None]]
    """Called with an answer that arrives after the sleeper was cancelled."""


class Connection(asyncio.BufferedProtocol):
    """Sends commands in one write and reads their answers in order, for one caller at a time."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=Refused, notEnoughData=MORE)
        # The stub of hiredis knows only of bytes.
        self._feed = cast("Callable[[memoryview, int, int], None]", self._reader.feed)
        self._portion = memoryview(bytearray(_PORTION))
        self._bulks: Bulks | None = None
        self._lists = False
        """The answer under way is a list for `_bulks`."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answers: list[Reply] = []
        self._missing = 0
        self._reply: asyncio.Future[list[Reply]] | None = None
        self._broken: str | None = None
        self.heard = self._loop.time()
        """The time of the last answer, by the clock of the event loop."""
        self.gone = self._loop.create_future()

    @property
    def fit(self) -> bool:
        """Whether the connection is usable: it is not broken, and all commands were answered."""
        return self._broken is None and not self._missing

    async def ask(self, commands: Sequence[Command], timeout: float, make: Make | None = None) -> list[Reply]:
        """The answers to these commands. Raises Cut. After that, or after a cancellation, the connection is not usable.

        `make`: what becomes of each element of the list that the only command asks for.
        """
        assert self._transport is not None  # the pool asks only after the connection was made
        self._answers, self._missing = [], len(commands)
        self._lists = make is not None
        if make is not None:
            self._bulks = self._bulks or Bulks()
            self._bulks.begin(make)
        last = commands[0][-1]
        if len(commands) > 1:
            self._transport.write(b"".join(map(packed, commands)))
        elif isinstance(last, bytes) and len(last) >= LARGE:
            self._transport.writelines(pieces(commands[0]))
        else:
            self._transport.write(packed(commands[0]))
        return await self.answers(timeout)

    async def answers(self, timeout: float) -> list[Reply]:
        """The answers to the last commands, also for a task that takes over from a cancelled caller."""
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
            # A server that accepts no more connections sends an error and closes the connection.
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
        self._transport = cast("asyncio.Transport", transport)  # the transport of uvloop is no subclass of it
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._bulks.room() if self._lists and self._bulks is not None else self._portion

    def buffer_updated(self, nbytes: int) -> None:
        reader, answers = self._reader, self._answers
        try:
            if self._lists and self._bulks is not None:
                self._take_bulks(self._bulks, nbytes)
            else:
                self._feed(self._portion, 0, nbytes)
            while (answer := reader.gets()) is not MORE:
                answers.append(answer)
                self._missing -= 1
        except (hiredis.ProtocolError, ValueError, struct.error) as error:
            self._break(str(error))
            return
        self.heard = self._loop.time()
        if self._missing < 0:
            self._break("it sent an answer without a question")
        elif not self._missing and self._reply is not None and not self._reply.done():
            self._reply.set_result(answers)

    def _take_bulks(self, bulks: Bulks, count: int) -> None:
        if bulks.take(count):
            self._lists = False
            self._answers.append(bulks.results)
            self._missing -= 1
        elif (other := bulks.other) is not None:
            self._lists = False
            self._feed(other, 0, len(other))

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
    """Makes connections to one server when they are needed, and keeps idle ones."""

    def __init__(self, host: str, port: int, address: Address) -> None:
        self.where = f"{host}:{port}"
        self._host, self._port, self._address = host, port, address
        self._idle: list[Connection] = []
        self._turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._open: set[Connection] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._sleepers: dict[str, Sleepers] = {}
        self._closing_rested: asyncio.TimerHandle | None = None

    async def ask(
        self, commands: Sequence[Command], within: float | None = None, make: Make | None = None
    ) -> list[Reply]:
        """Send commands in one write, and answer with the answers and refusals. Raises Cut, or Refused if no connection is accepted.

        `within`: seconds for each step of a call that cannot wait, such as a heartbeat. It waits for no other call's turn.
        `make`: as of `Connection.ask`.
        """
        if within is not None:
            return await self._exchange(commands, min(within, self._address.timeout))
        async with self._turns:
            return await self._exchange(commands, self._address.timeout, make=make)

    async def block(self, commands: Sequence[Command], timeout: float) -> list[Reply]:
        """As `ask`, for commands that the server answers up to `timeout` seconds later. It takes no turn."""
        return await self._exchange(commands, self._address.timeout, timeout)

    async def _exchange(
        self, commands: Sequence[Command], patience: float, more: float = 0.0, make: Make | None = None
    ) -> list[Reply]:
        connection = self._idle_one() or await self._connect(patience)
        began = asyncio.get_running_loop().time()
        try:
            answers = await connection.ask(commands, patience + more, make)
        except BaseException as error:
            self._give_up(connection, error, began)
            raise
        self._rest(connection, answers)
        return answers

    def _give_up(self, connection: Connection, error: BaseException, began: float) -> None:
        """Close a connection whose commands failed. If it broke, idle connections may be broken, too."""
        self._drop(connection)
        if isinstance(error, Cut):
            self._distrust(began)

    def _rest(self, connection: Connection, answers: list[Reply]) -> None:
        """Keep a free connection. One to a server that has become a replica is closed: its name may lead to another server now."""
        for answer in answers:
            if isinstance(answer, Refused) and faults.demoted(answer):
                self._drop(connection)
                self._distrust(float("inf"))
                return
        self._idle.append(connection)
        if self._closing_rested is None and len(self._idle) > 1:
            self._closing_rested = asyncio.get_running_loop().call_later(_RESTED, self._close_rested)

    def _distrust(self, before: float) -> None:
        """Close idle connections without an answer since this time. After one broke, each of them would fail in turn."""
        for connection in [idle for idle in self._idle if idle.heard < before]:
            self._idle.remove(connection)
            self._drop(connection)

    def _close_rested(self) -> None:
        """Close idle connections except the last in the list, which was used last."""
        self._closing_rested = None
        loop = asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0].heard < loop.time() - _RESTED:
            self._drop(self._idle.pop(0))
        if len(self._idle) > 1:
            self._closing_rested = loop.call_later(_RESTED, self._close_rested)

    def sleepers(self, group: str) -> Sleepers:
        """The waits on lists that one command may name together."""
        sleepers = self._sleepers.get(group)
        if sleepers is None:
            sleepers = self._sleepers[group] = Sleepers(self, f"{group}:{secrets.token_hex(8)}")
        return sleepers

    def send_off(self, commands: Sequence[Command]) -> None:
        """Send commands in the background. No caller waits for the answers."""

        async def say() -> None:
            with suppress(Cut, Refused):
                await self.ask(commands)

        self._send_off(say())

    def put_back(self, key: str) -> None:
        """Put back an element that was taken from a list, for another caller."""
        self.send_off(put_back(key))

    async def pop(self, keys: Sequence[str], timeout: float, follow: Follow) -> list[Reply]:
        """Take an element of the first list that has one. Answers the list and the element, or None, and the answer to `follow`.

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
            self._give_up(connection, error, began)
            raise
        self._rest(connection, answers)
        return answers

    async def _call_off(self, connection: Connection, bell: str, follow: Follow) -> None:
        try:
            # The sleeper takes one element. The other stays, and tells the command that follows to do nothing.
            [rung, _] = await self.ask([("RPUSH", bell, 1, 1), ("PEXPIRE", bell, _UNHEARD)])
            if isinstance(rung, Refused):
                raise rung
            answer, followed = await connection.answers(self._address.timeout)
            taken = cast("list[bytes]", answer)[0].decode() if isinstance(answer, list) else bell
            if isinstance(followed, list):
                # The command ran before the cancellation, and has used the element.
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
            # The greeting needs the timeout, too: a server may accept a connection and never answer.
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=tls_context(address))
                await connection.greet(address, seconds)
        except (OSError, TimeoutError, Cut) as error:
            self._drop(connection)
            if why := faults.distrust(error):
                # The event loop closes the transport of a failed handshake in its next turns.
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
    """Commands that put an element into a list, which needs no more than one."""
    return ("RPUSH", key, 1), ("LTRIM", key, 0, 0)
