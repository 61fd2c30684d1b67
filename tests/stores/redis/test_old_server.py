"""A server that is too old is refused at open, and so is one that does not say how old it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from headrace.errors import SchemaMismatch
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer


@asynccontextmanager
async def stub(info: str) -> AsyncGenerator[str]:
    """A server that knows INFO and says OK to everything else; its URL. Leave when every client is gone."""

    talks: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = asyncio.get_running_loop().create_future()
        talks.append(over)
        while count := (await reader.readline())[1:].strip():
            words: list[bytes] = []
            for _ in range(int(count)):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2])
            command = words[0].upper()
            text = info.encode()
            answers = {b"INFO": b"$%d\r\n%s\r\n" % (len(text), text), b"CONFIG": b"*0\r\n"}
            writer.write(answers.get(command, b"+OK\r\n"))
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        over.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"redis://:secret@127.0.0.1:{port}/0"
        await asyncio.gather(*talks)


async def test_an_old_server_is_refused(old_server: RedisServer):
    version = re.search(r"redis_version:(6\.2\.\d+)\r\n", old_server.command("INFO", "server"))
    assert version is not None
    store = RedisStore(old_server.url())
    try:
        for verb in (store.open, store.check):
            with pytest.raises(SchemaMismatch) as caught:
                await verb()
            assert str(caught.value) == (
                f"Redis at 127.0.0.1:{old_server.port} is {version[1]}: headrace needs Redis 7.0 or newer, or Valkey"
            )
    finally:
        await store.close()
    assert old_server.command("KEYS", "*") == ""


async def test_a_server_without_a_version_is_refused():
    async with stub("redis_mode:standalone\r\n") as url:
        store = RedisStore(url)
        try:
            with pytest.raises(SchemaMismatch, match="is 0: headrace needs") as caught:
                await store.open()
        finally:
            await store.close()
        assert "secret" not in str(caught.value)
