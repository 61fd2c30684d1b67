"""The health endpoint: what it answers about the worker processes, and what bad and slow clients can do to it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from headrace.errors import ConfigError
from headrace.worker import health
from headrace.worker.figures import AWAY, QUIET, SERVING, WorkerFigures
from headrace.worker.health import Address, HealthServer, WorkerHealth
from headrace.worker.process_table import ProcessTable
from headrace.worker.shared_page import SharedPage, SharedPageView
from worker.harness import WAIT, until


class Process:
    """A worker process, as far as the endpoint sees one."""

    retiring = ""

    def __init__(self, name: str = "host:1") -> None:
        self.name = name
        self.pid = 1
        self.page = SharedPageView()
        self.own = SharedPage(self.page.fd)
        self.signals: list[signal.Signals] = []

    def show(self, state: int = SERVING, **figures: int) -> None:
        self.own.beat()
        self.own.write_figures(WorkerFigures(state, **figures))

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def close(self) -> None:
        self.own.close()
        self.page.close()


@pytest.fixture
def process():
    process = Process()
    yield process
    process.close()


@pytest.fixture
def table(process: Process) -> ProcessTable:
    table = ProcessTable()
    table.add(process)
    return table


@asynccontextmanager
async def listening(table: ProcessTable) -> AsyncGenerator[int]:
    async with health.answering(table, Address("127.0.0.1", 0)) as address:
        yield address.port


async def send(port: int, request: bytes) -> tuple[int, bytes]:
    """The status and the body; 0: the server closed the connection without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(WAIT):
            try:
                answer = await reader.read()
            except ConnectionError:
                answer = b""
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]) if head else 0, body


async def get(port: int, path: str) -> tuple[int, bytes]:
    return await send(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


# ── what it answers ─────────────────────────────────────────────────────────


async def test_ready_once_a_process_serves(table: ProcessTable, process: Process) -> None:
    async with listening(table) as port:
        code, body = await get(port, "/readyz")
        assert (code, json.loads(body)["reason"]) == (503, "worker host:1 does not serve its queues yet")
        assert await get(port, "/livez") == (200, b'{"status":"ok"}')
        process.show()
        assert await get(port, "/readyz?verbose") == (200, b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (SERVING | QUIET, "worker host:1 claims nothing more"),
        (SERVING | AWAY, "worker host:1 does not reach its store"),
    ],
)
def test_one_good_process_is_enough(table: ProcessTable, process: Process, state: int, reason: str) -> None:
    process.show(state)
    at = WorkerHealth(table)
    assert at.not_ready() == reason
    assert not at.not_alive()
    other = Process("host:2")
    table.add(other)
    other.show()
    assert not at.not_ready()
    table.stop.set()
    assert at.not_ready() == "draining: the workers claim nothing more"
    assert not at.not_alive()
    other.close()


def test_a_blocked_loop(table: ProcessTable, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.show()
    at = WorkerHealth(table)
    monkeypatch.setattr(health, "monotonic", lambda: process.page.pulse + 6)
    assert at.not_ready() == "the event loop of worker host:1 is blocked"
    assert not at.not_alive()
    monkeypatch.setattr(health, "monotonic", lambda: process.page.pulse + 61)
    assert "blocked for more than 60 s" in at.not_alive()


def test_no_process(table: ProcessTable, process: Process) -> None:
    table.remove(process)
    assert WorkerHealth(table).not_ready() == "no worker process runs"


def test_totals_never_fall(table: ProcessTable, process: Process) -> None:
    process.show(slots=100, threads=16, running_thread=2, claimed=7, succeeded=4, failed=1, claims=3)
    at = WorkerHealth(table)
    text = at.exposition().splitlines()
    for line in (
        'headrace_worker_processes{state="serving"} 1',
        "headrace_worker_slots 100",
        'headrace_worker_executor_slots{executor="thread"} 16',
        'headrace_worker_running{executor="thread"} 2',
        "headrace_worker_claimed_total 7",
        'headrace_worker_ended_total{outcome="failed"} 1',
        'headrace_worker_store_calls_total{call="claim"} 3',
        "headrace_worker_ready 1",
        "# TYPE headrace_worker_claimed_total counter",
    ):
        assert line in text
    table.remove(process)
    text = at.exposition().splitlines()
    assert "headrace_worker_slots 0" in text
    assert "headrace_worker_claimed_total 7" in text
    assert "headrace_worker_process_starts_total 1" in text


# ── clients ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /livez HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01" + b"\x00" * 9000, 400),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 400),
    ],
)
async def test_bad_requests(table: ProcessTable, request_: bytes, code: int) -> None:
    async with listening(table) as port:
        # A client that sent more than the server read may see a reset in place of the answer.
        assert (await send(port, request_))[0] in {code, 0 if len(request_) > health.MAX_REQUEST else code}
        assert (await get(port, "/livez"))[0] == 200


async def test_head_has_no_body(table: ProcessTable) -> None:
    async with listening(table) as port:
        assert await send(port, b"HEAD /livez HTTP/1.1\r\n\r\n") == (200, b"")


async def test_silent_clients_are_closed_and_bounded(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.2)
    server = HealthServer(WorkerHealth(table))
    address = await server.start(Address("127.0.0.1", 0))
    silent = [await asyncio.open_connection("127.0.0.1", address.port) for _ in range(health.MAX_CONNECTIONS + 10)]
    assert len(server._open) <= health.MAX_CONNECTIONS
    for reader, _ in silent:
        async with asyncio.timeout(WAIT):
            with suppress(ConnectionError):
                assert await reader.read() == b""
    await until(lambda: not server._open)
    assert (await get(address.port, "/livez"))[0] == 200
    for _, writer in silent:
        writer.close()
    await server.stop()


async def test_a_taken_port_is_an_error_of_one_line(table: ProcessTable) -> None:
    async with listening(table) as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*choose another --health-port"):
            await HealthServer(WorkerHealth(table)).start(Address("127.0.0.1", port))
