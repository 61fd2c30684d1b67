"""How much one client may ask for; S52 to S65."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import requires, version
from pathlib import Path
from typing import cast

import psutil
import pytest

from headrace import Headrace
from headrace.server import ServerSettings
from headrace.server.http import listener as listening
from headrace.server.http.listener import LINGER_BYTES, SWEEP, Protocol
from server.process import APP, serving
from server.running import Running, running
from server.security.sent import POST, jobs, post, pumped, raw, refused, status_of
from servers.process import free_port

healthy = pytest.mark.usefixtures("unharmed")
only_memory = pytest.mark.parametrize("store_name", ["memory"], indirect=True)


# ── slow clients ─────────────────────────────────────────────────────────────

CROWD = 2000


@pytest.fixture
def files() -> Iterator[None]:
    """Both ends of every connection are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * CROWD
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"this test needs {wanted} open files: raise ulimit -n"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Slow(asyncio.Protocol):
    """A client that sends a byte of a header from time to time."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self.heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(b"GET /livez HTTP/1.1\r\nX-A: ")

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.closed.set()


@asynccontextmanager
async def crowd(port: int) -> AsyncGenerator[list[Slow]]:
    """So many of them, until they are sent away."""
    loop = asyncio.get_running_loop()
    people = [(await loop.create_connection(Slow, "127.0.0.1", port))[1] for _ in range(CROWD)]

    async def drip() -> None:
        while True:
            await asyncio.sleep(1)
            for each in people:
                if each.transport is not None:
                    each.transport.write(b"x")

    dripping = asyncio.create_task(drip())
    try:
        yield people
    finally:
        dripping.cancel()
        for each in people:
            if each.transport is not None:
                each.transport.abort()


@only_memory
async def test_s61_a_crowd_of_slow_clients_stops_nobody(app: Headrace, files: None) -> None:
    patience = 600  # longer than the slowest machine needs for what follows
    async with running(app, ServerSettings(port=0, read_timeout=patience)) as server, crowd(server.port) as people:
        for number in range(100):
            made = await server.http.post("/v1/jobs", json={"task": "add", "args": [number]})
            assert made.status_code == 201
        # All of them were there meanwhile.
        connections = cast("set[Protocol]", server.server.server_state.connections)
        assert len(connections) > CROWD
        # And now as if all of them had had their time.
        for each in connections:
            if each.waiting_since is not None:
                each.waiting_since -= patience
        async with asyncio.timeout(60):
            await asyncio.gather(*(each.closed.wait() for each in people))
        assert {each.heard for each in people} == {b""}
        assert (await server.http.get("/livez")).status_code == 200


@only_memory
async def test_s61_within_ten_seconds(server: Running) -> None:
    """By the server's own clock: a client gets no more than this between two checks."""
    patience = ServerSettings().read_timeout
    assert patience == 10
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /livez HTTP/1.1\r\nX-A: x")
    await server.http.get("/livez")  # by now it has come in
    [slow] = [
        each
        for each in cast("set[Protocol]", server.server.server_state.connections)
        if each.client == writer.get_extra_info("sockname")
    ]
    began = slow.waiting_since
    assert began is not None
    # As the sweep looks at it: it comes every SWEEP seconds, and must not come too late.
    assert not slow.overdue(began + 1, patience - SWEEP)
    assert slow.overdue(began + patience - SWEEP + 0.001, patience - SWEEP)
    # A byte more changes nothing.
    slow.data_received(b"y")
    assert slow.waiting_since == began
    writer.close()
    assert await reader.read() == b""


@pytest.mark.parametrize("ending", ["time", "size", "client"])
@only_memory
async def test_who_was_refused_is_not_waited_for_long(
    server: Running, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = asyncio.Event()
    thrown: list[int] = []
    hang_up = Protocol.connection_lost

    def noticed(self: Protocol, exc: Exception | None) -> None:
        hang_up(self, exc)
        if self.leaving_since is not None:
            thrown.append(self._thrown)
            lost.set()

    monkeypatch.setattr(Protocol, "connection_lost", noticed)
    if ending == "time":
        monkeypatch.setattr(listening, "LINGER", 0.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(POST + b"Content-Type: text/plain\r\nContent-Length: 100000000\r\n\r\n{")
    async with asyncio.timeout(60):
        assert status_of(await reader.read()) == 415
        if ending == "size":
            writer.write(b"x" * (10 * LINGER_BYTES))
        elif ending == "client":
            writer.close()
        await lost.wait()
    assert thrown[0] <= LINGER_BYTES + 256 * 1024  # one more read
    assert (thrown[0] > LINGER_BYTES) is (ending == "size")
    writer.close()


# ── how much is kept of it ───────────────────────────────────────────────────


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_s11_s14_s29_what_is_refused_takes_no_memory(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    port = free_port()
    noise = os.urandom(0x10000)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    refusals = {
        415: (POST + b"Content-Type: multipart/form-data; boundary=x\r\n" + chunked, b"10000\r\n" + noise + b"\r\n"),
        413: (POST + b"Content-Type: application/json\r\n" + chunked, b"10000\r\n" + b" " * 0x10000 + b"\r\n"),
        431: (b"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer ", b"a" * 0x10000),
    }
    async with serving(tmp_path, store_url, port, "--no-access-log") as process:

        async def all_of_them() -> None:
            for status, (head, chunk) in refusals.items():
                answer, _ = await pumped(port, head, chunk, 10 << 30)
                assert status_of(answer) == status

        for _ in range(10):
            await all_of_them()  # so that what the allocator keeps is there

        async def growth() -> int:
            before = psutil.Process(process.pid).memory_info().rss
            for _ in range(20):
                await all_of_them()
            return psutil.Process(process.pid).memory_info().rss - before

        # The allocator may take a little more at any time; what is kept of each refusal would show every time.
        grown = [await growth()]
        while grown[-1] > 1024 * 1024 and len(grown) < 5:
            grown.append(await growth())
        assert min(grown) <= 1024 * 1024, grown


# ── how much at once ─────────────────────────────────────────────────────────


@healthy
async def test_s63_ranges_are_ignored(server: Running) -> None:
    whole = await server.http.get("/docs/docs.js")
    # As many as fit into a header; more of them are too long for one.
    few = {"Range": "bytes=" + ",".join(["0-"] * 10_000)}
    spent: list[float] = []
    for _ in range(5):
        began = time.process_time()
        answer = await server.http.get("/docs/docs.js", headers=few)
        spent.append(time.process_time() - began)
        assert (answer.status_code, answer.content) == (200, whole.content)
    assert min(spent) < 1  # of the processor, the client's share included, on any machine; some milliseconds are usual
    many = {"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(10_000))}
    refused(await server.http.get("/docs/docs.js", headers=many), 431, "headers_too_large")


def test_s63_starlette_is_new_enough() -> None:
    assert tuple(map(int, version("starlette").split(".")[:3])) >= (0, 49, 1)
    [wanted] = [
        each
        for each in requires("headrace") or ()
        if each.startswith("starlette") and '"server"' in each.replace("'", '"')
    ]
    assert re.match(r"starlette\s*>=\s*0\.49\.1\b", wanted)


@healthy
@pytest.mark.parametrize(
    "headers",
    [
        [("X-Large", "x" * 100_000)],
        [("X-Large", "x" * 1_000_000)],
        [(f"X-{n}", "x") for n in range(1000)],
    ],
)
async def test_s64_a_head_has_its_limit(server: Running, headers: list[tuple[str, str]]) -> None:
    head = "GET /livez HTTP/1.1\r\nHost: localhost\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    assert status_of(await raw(server, head.encode() + b"\r\n")) == 431


@healthy
async def test_s64_a_path_has_its_limit(server: Running) -> None:
    answer = await raw(server, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 414


@healthy
async def test_s65_a_batch_has_its_limit_and_no_parts(server: Running) -> None:
    many = {"jobs": [{"task": "add", "args": [n]} for n in range(1001)]}
    refused(await server.http.post("/v1/jobs/batch", json=many), 422, "batch_too_large")
    refused(await server.http.post("/v1/jobs/batch", json={"jobs": []}), 422, "batch_empty")
    nested = {"jobs": [{"task": "add", "args": [1]}, {"jobs": [{"task": "add", "args": [1]}]}]}
    refused(await server.http.post("/v1/jobs/batch", json=nested), 422, "unknown_field")
    one_bad = {"jobs": [{"task": "add", "args": [1]}, {"task": "add", "args": ["x"]}]}
    answer = await server.http.post("/v1/jobs/batch", json=one_bad)
    refused(answer, 422, "bad_arguments")
    assert answer.json()["path"].startswith("jobs[1].")
    huge = b'{"jobs":[' + b",".join([b"1"] * 500_001) + b"]}"
    refused(await post(server, huge, "/v1/jobs/batch"), 422, "invalid_field")
    assert await jobs(server) == []


@only_memory
async def test_s65_a_million_jobs_and_one(app: Headrace) -> None:
    body = b'{"jobs":[' + b",".join([b'{"task":"add","args":[1]}'] * 1_000_001) + b"]}"
    async with running(app) as server:
        answer, _ = await pumped(
            server.port,
            POST.replace(b"/jobs", b"/jobs/batch") + b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body),
            body,
            len(body),
        )
        assert status_of(answer) == 413  # it is not even read
        assert await jobs(server) == []
    async with running(app, ServerSettings(port=0, max_body=64 * 1024 * 1024)) as server:
        refused(await post(server, body, "/v1/jobs/batch"), 422, "batch_too_large")
        assert await jobs(server) == []
