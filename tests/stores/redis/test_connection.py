"""Connections: unexpected messages of a server, and what happens to the connection then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.crc import key_slot

from headrace.errors import OutcomeUnknown, Unavailable
from headrace.store.redis.client.client import make_wire
from headrace.store.redis.client.cluster import slot_of
from headrace.store.redis.client.connection import Command, Pool
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.packing import packed, pieces
from headrace.store.redis.client.url import parse
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer
from stores.redis.kit import eventually


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes], patience: int = 60) -> AsyncGenerator[Pool]:
    """A pool of connections to a server that answers whatever comes with this; how many seconds they wait for it."""
    talks: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.get_running_loop().create_future()
        talks.append(over)
        while words := await reader.read(4096):
            writer.write(b"+OK\r\n" if b"SETNAME" in words else answer(words))
        writer.close()
        over.set_result(None)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool("127.0.0.1", port, parse(f"redis://127.0.0.1:{port}/0?timeout={patience}"))
        yield pool
        await pool.close()
        await asyncio.gather(*talks)


async def test_answers_come_in_the_order_of_what_was_asked():
    async with answering(lambda _: b"+one\r\n-ERR two\r\n*2\r\n:3\r\n$-1\r\n") as pool:
        one, two, three = await pool.ask([("A",), ("B",), ("C",)])
        assert (one, three) == (b"one", [3, None])
        assert isinstance(two, Refused)
        assert str(two) == "ERR two"


async def test_who_does_not_speak_the_protocol_is_cut_off():
    async with answering(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as pool:
        with pytest.raises(Cut, match="Protocol error"):
            await pool.ask([("PING",)])


async def test_a_connection_out_of_step_is_not_used_again():
    said = iter([b"+mine\r\n+whose?\r\n", b"+right\r\n"])
    async with answering(lambda _: next(said)) as pool:
        first = await asyncio.gather(pool.ask([("PING",)]), return_exceptions=True)
        assert first == [[b"mine"]] or isinstance(first[0], Cut)
        assert await pool.ask([("PING",)]) == [b"right"]


async def test_silence_is_an_answer_that_may_have_been():
    async with answering(lambda _: b"", patience=1) as pool:
        with pytest.raises(Cut, match="no answer within 1 s") as caught:
            await pool.ask([("PING",)])
        assert caught.value.sent


async def test_a_server_with_no_room_for_connections_says_so(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "maxclients", "1")
    with socket.create_connection(("127.0.0.1", own_server.port)) as only:
        only.sendall(b"PING\r\n")
        assert only.recv(100).startswith(b"-NOAUTH")
        store = RedisStore(own_server.url())
        with pytest.raises(Unavailable, match="takes no more connections"):
            await store.open()
        await store.close()


async def test_a_server_that_hung_up_meanwhile_is_noticed_before_it_is_asked(own_server: RedisServer):
    wire = make_wire(parse(own_server.url()))
    await wire.command("x", "PING")
    own_server.command("CLIENT", "KILL", "TYPE", "normal")
    await eventually(lambda: "name=headrace" not in own_server.command("CLIENT", "LIST"))
    # Not repeated, so a connection that is dead already would be an unknown outcome.
    try:
        [answer] = await wire.command_many([("INCR", "x")], "x", repeat=False)
    except OutcomeUnknown:
        pytest.fail("asked on a connection that the server had closed")
    assert answer == 1
    await wire.close()


@pytest.mark.parametrize("key", ["hr:{default}:d", "plain", "{}x", "a{b}c{d}", "{", "}{x}", "hr:{#limits}:", "ä{ö}ü"])
def test_slots_are_those_of_redis(key: str):
    assert slot_of(key) == key_slot(key.encode())


@pytest.mark.parametrize(
    "command",
    [
        ("PING", b"x" * 5000),
        ("EVALSHA", "é", 2, 1.5, b"", b"a" * 4096, b"b" * 4095, "k", b"c" * 100_000, b"d" * 5000),
        ("SET", "k", b"v"),
    ],
)
def test_a_command_in_pieces_is_the_same_command(command: Command):
    assert b"".join(pieces(command)) == packed(command)


def test_large_words_are_sent_without_a_copy():
    large = bytes(100_000)
    assert any(piece is large for piece in pieces(("RPUSH", "k", large, b"small", large)))


async def test_a_server_reads_a_command_of_large_words(server: RedisServer):
    pool = Pool("127.0.0.1", server.port, parse(server.url()))
    words = [bytes([number]) * 1_000_000 for number in range(20)]
    assert await pool.ask([("RPUSH", "large", *words)]) == [20]
    assert await pool.ask([("LRANGE", "large", 0, -1)]) == [words]
    await pool.ask([("DEL", "large")])
    await pool.close()
