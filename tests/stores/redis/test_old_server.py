"""A server that is too old is refused at open. No such binary is at hand: a stub says what an old one would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from headrace.errors import SchemaMismatch
from headrace.store.redis.store import RedisStore


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


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        ("redis_version:6.2.14\r\n", "Redis at 127.0.0.1:{port} is 6.2.14"),
        ("redis_version:5.0.3\r\nrole:master\r\n", "Redis at 127.0.0.1:{port} is 5.0.3"),
        ("redis_mode:standalone\r\n", "Redis at 127.0.0.1:{port} is 0"),
    ],
)
async def test_an_old_server_is_refused(info: str, shown: str):
    async with stub(info) as url:
        store = RedisStore(url)
        try:
            with pytest.raises(SchemaMismatch) as caught:
                await store.open()
        finally:
            await store.close()
        port = url.rpartition(":")[2].partition("/")[0]
        assert shown.format(port=port) in str(caught.value)
        assert "7.0" in str(caught.value)
        assert "secret" not in str(caught.value)
