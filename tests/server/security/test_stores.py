"""What stores are sent and what they must be able to refuse: constant scripts, TLS without a way round, few rights."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace import Headrace, Limit
from headrace.errors import HeadraceError
from headrace.model.job import JobState
from headrace.model.records import Retention
from headrace.store import connect, redis
from headrace.store.redis.client import scripts
from server.test_tls import authority, certificate
from servers.postgres import PostgresServer
from servers.redis import RedisServer

# ── scripts ──────────────────────────────────────────────────────────────────

LUA = Path(redis.__file__).parent / "lua"
EVERY_SCRIPT = [each for each in vars(scripts).values() if isinstance(each, scripts.Script)]


def test_s22_scripts_are_files_and_their_names_digests() -> None:
    # The client puts the keys in place of their names, which stand in a file, too.
    files = {path: scripts.read_part(path).encode() for path in sorted(LUA.rglob("*.lua"))}
    assert len(EVERY_SCRIPT) > 20
    for script in EVERY_SCRIPT:
        assert script.sha == hashlib.sha1(script.source, usedforsecurity=False).hexdigest()
        # Whole files in a row, and nothing between them but the words of a scope, or of a function around some of them.
        left = script.source
        parts = [*files.values(), *(scripts.in_own_scope(text.decode()).encode() for text in files.values())]
        parts += [f"local function {path.stem}()\n".encode() for path in files] + [b"end\n"]
        while left:
            [part] = [text for text in parts if left.startswith(text) and text]
            left = left.removeprefix(part)
    for path, text in files.items():
        # Nothing in them makes code of data.
        assert not re.search(rb"\b(loadstring|load|dofile|setfenv)\s*\(", text), path


@pytest.mark.parametrize("store_name", ["redis", "valkey"], indirect=True)
async def test_s22_a_server_sees_no_other_script(
    store_url: str, request: pytest.FixtureRequest, store_name: str
) -> None:
    server: RedisServer = request.getfixturevalue(f"{store_name}_server")
    server.command("SCRIPT", "FLUSH")
    await flow(store_url)
    known = {script.sha for script in EVERY_SCRIPT}
    [cached] = re.findall(r"number_of_cached_scripts:(\d+)", server.command("INFO", "memory"))
    there = [sha for sha in known if "1" in server.command("SCRIPT", "EXISTS", sha)]
    assert int(cached) == len(there) > 0


async def flow(url: str) -> None:
    """A job's life and an operator's look, as every installation has them."""
    app = Headrace(url, poll="50ms", drain="2s")

    @app.task(name="add", limits=[Limit("few", concurrency=2)])
    async def add(a: int) -> int:
        if a < 0:
            raise ValueError(a)
        return a + 1

    evil = ["']] .. redis.call('FLUSHALL') ..'", 'x"; DROP TABLE headrace.job;--', "$(FLUSHALL) {x} *"]
    handles = [await add.using(key=key, tenant="acme").aenqueue(n) for n, key in enumerate(evil)]
    late = await add.using(delay="100ms").aenqueue(10)
    bad = await add.using(max_attempts=1).aenqueue(-1)
    async with app.worker():
        assert [await each.aresult(timeout=30) for each in handles] == [1, 2, 3]
        assert await late.aresult(timeout=30) == 11
        with suppress(HeadraceError):
            await bad.aresult(timeout=30)
    assert (await bad.astatus()).state is JobState.DEAD
    store = connect(url)
    await store.open()
    try:
        await store.pause("mail", by="me")
        await store.resume("mail")
        await store.prune(Retention())
        assert (await store.stats()).queues[0].done_total == 4
        assert not [each for each in await store.check() if each.level == "error"]
    finally:
        await store.close()
        await app.aclose()


# ── few rights ───────────────────────────────────────────────────────────────

GRANTS = """
    create role clerk login password 'clerk';
    grant usage on schema headrace to clerk;
    grant select, insert, update, delete on all tables in schema headrace to clerk;
    grant usage on all sequences in schema headrace to clerk;
    grant execute on all functions in schema headrace to clerk;
"""


@pytest.mark.parametrize("store_name", ["postgres"], indirect=True)
async def test_s77_a_role_that_may_only_write_rows(store_url: str, postgres_server: PostgresServer) -> None:
    parts = urlsplit(store_url)
    database = parts.path.lstrip("/")
    postgres_server.psql(GRANTS, database=database)
    clerk = f"{parts.scheme}://clerk:clerk@{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        await flow(clerk)
        import asyncpg

        connection = await asyncpg.connect(clerk)
        try:
            for statement in ("create table headrace.mine (x int)", "drop table headrace.job", "create schema mine"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
        finally:
            await connection.close()
    finally:
        postgres_server.psql("drop owned by clerk", database=database)
        postgres_server.psql("drop role clerk")


@pytest.mark.parametrize("store_name", ["redis", "valkey"], indirect=True)
async def test_s77_a_user_of_our_keys_only(store_url: str, request: pytest.FixtureRequest, store_name: str) -> None:
    server: RedisServer = request.getfixturevalue(f"{store_name}_server")
    rights = [
        "~hr:*",
        "&*",
        "+@read",
        "+@write",
        "+@connection",
        "+@scripting",
        "+@transaction",
        "+info",
        "+config|get",
        "+time",
        "-@dangerous",
        "+info",
        "+config|get",
    ]
    server.command("ACL", "SETUSER", "clerk", "reset", "on", ">clerk", *rights)
    parts = urlsplit(store_url)
    clerk = f"{parts.scheme}://clerk:clerk@{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        await flow(clerk)
        from redis import Redis
        from redis.exceptions import NoPermissionError

        with Redis.from_url(clerk) as client:
            for words in (
                ("FLUSHALL",),
                ("SET", "other", "1"),
                ("GET", "other"),
                ("CONFIG", "SET", "dir", "/tmp"),
                ("KEYS", "*"),
            ):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*words)
    finally:
        server.command("ACL", "DELUSER", "clerk")


# ── TLS ──────────────────────────────────────────────────────────────────────

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class Pretender:
    """What a PostgreSQL server says before TLS begins; it notes whatever it is told without."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.port = 0
        self.asked = 0
        self.plain = b""
        self.through = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readexactly(8)
            if head != SSL_REQUEST:
                self.plain += head
                return
            self.asked += 1
            writer.write(b"N" if self.tls is None else b"S")
            await writer.drain()
            if self.tls is not None:
                await writer.start_tls(self.tls)
                self.through += await reader.read(1000)
            else:
                self.plain += await reader.read(1000)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def pretending(tls: ssl.SSLContext | None) -> AsyncGenerator[Pretender]:
    made = Pretender(tls)
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.port = server.sockets[0].getsockname()[1]
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    authority(made, "ours")
    authority(made, "stranger")
    certificate(made, "server", "IP:127.0.0.1,DNS:localhost")
    certificate(made, "elsewhere", "DNS:elsewhere.example")
    return made


@pytest.mark.parametrize(
    ("shown", "trusted", "meets"),
    [
        ("", "ours", False),
        ("server", "stranger", False),
        ("elsewhere", "ours", False),
        ("server", "ours", True),
    ],
    ids=["plain", "stranger", "elsewhere", "right"],
)
async def test_s75_postgres_verifies_and_never_falls_back(
    folder: Path, shown: str, trusted: str, meets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tls = None
    if shown:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / f"{shown}.pem", folder / f"{shown}.key")
    async with pretending(tls) as there:
        options: dict[str, Any] = {"sslmode": "verify-full", "sslrootcert": folder / f"{trusted}.pem"}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        store = connect(f"postgresql://u:s3cret@127.0.0.1:{there.port}/db?{query}")
        with pytest.raises(HeadraceError) as caught:
            await store.open()
        await store.close()
        assert there.asked >= 1
        assert there.plain == b""  # not a word without TLS, the user's name least of all
        assert bool(there.through) is meets
    assert "s3cret" not in str(caught.value) + caplog.text
