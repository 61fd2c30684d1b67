"""The health endpoint: what it answers about the worker processes, and what bad and slow clients can do to it."""

from __future__ import annotations

import asyncio
import json
import mmap
import resource
import selectors
import socket
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import ConfigError
from headrace.supervisor import health, probe_server
from headrace.supervisor.figures import AWAY, QUIET, SERVING, WorkerFigures
from headrace.supervisor.health import WorkerHealth
from headrace.supervisor.page import PAGE_SIZE, SharedPageView, copy_at
from headrace.supervisor.probe_server import Address, HealthServer, listen
from headrace.supervisor.process_table import ProcessTable
from headrace.supervisor.series import LIMIT_UNITS, MOST_LIMITS, MOST_PAIRS, OTHERS, RUN, SECONDS, Series
from headrace.supervisor.series import WAIT as WAITED
from headrace.worker.shared_page import SharedPage
from worker.harness import WAIT, until


class Process:
    """A worker process, as far as the endpoint sees one."""

    retiring = ""

    def __init__(self, name: str = "host:1") -> None:
        self.name = name
        self.pid = 1
        self.page = SharedPageView()
        self.own = SharedPage(self.page.fd)
        self.signals: list[int] = []

    def show(self, state: int = SERVING, **figures: int) -> None:
        self.own.beat()
        self.own.write_figures(WorkerFigures(state, **figures))

    def send_signal(self, number: int, /) -> None:
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
async def serving(table: ProcessTable) -> AsyncGenerator[tuple[HealthServer, int]]:
    """The server in a loop of its own, as the supervisor has one, and its port."""
    [listener] = listen(Address("127.0.0.1", 0))
    selector = selectors.DefaultSelector()
    server = HealthServer(WorkerHealth(table), selector, [listener])
    port = listener.getsockname()[1]
    over = threading.Event()

    def turn() -> None:
        while not over.is_set():
            for key, _ in selector.select(0.02):
                key.data()
            server.step(monotonic())
        server.stop()
        selector.close()

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield server, port
    finally:
        over.set()
        await asyncio.to_thread(thread.join)


@asynccontextmanager
async def listening(table: ProcessTable) -> AsyncGenerator[int]:
    async with serving(table) as (_, port):
        yield port


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
    table.stopping = True
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
    text = at.exposition().decode().splitlines()
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
    text = at.exposition().decode().splitlines()
    assert "headrace_worker_slots 0" in text
    assert "headrace_worker_claimed_total 7" in text
    assert "headrace_worker_process_starts_total 1" in text


def read(table: ProcessTable) -> Iterable[Metric]:
    return text_string_to_metric_families(WorkerHealth(table).exposition().decode())


def full_page(first: int = 0) -> list[Series]:
    """Everything that one process may measure, with the longest names."""
    pairs = [(f"{'q' * 60}{number % 10:03}", f"{'t' * 125}{number:03}") for number in range(first, first + MOST_PAIRS)]
    many = (2**60, *range(len(SECONDS)))
    times = [Series(family, pair, 1e9, many) for pair in pairs for family in (WAITED, RUN)]
    return [*times, *(Series(LIMIT_UNITS, (f"{number:063}",), 7.0) for number in range(MOST_LIMITS))]


def test_series_fit_on_the_page_and_add_up(table: ProcessTable, process: Process) -> None:
    assert process.page.series == []
    other = Process("host:2")
    table.add(other)
    for writer in (process, other):
        writer.own.write_series([])
        writer.own.write_series(full_page())
        assert writer.page.series == full_page()
    families = {family.name: family for family in read(table)}
    waits = families["headrace_worker_wait_seconds"].samples
    assert len(waits) == MOST_PAIRS * (len(SECONDS) + 3)
    assert waits[0].value == 2 * 2**60
    units = families["headrace_worker_limit_units"].samples
    assert [sample.value for sample in units] == [14.0] * MOST_LIMITS
    # The counts of a process that has ended stay. What it held is free.
    table.remove(other)
    families = {family.name: family for family in read(table)}
    assert families["headrace_worker_wait_seconds"].samples == waits
    assert [sample.value for sample in families["headrace_worker_limit_units"].samples] == [7.0] * MOST_LIMITS
    other.close()


def test_tasks_of_many_processes_stay_bounded(table: ProcessTable) -> None:
    for number in range(6):
        process = Process(f"host:{number}")
        process.own.write_series(full_page(number * MOST_PAIRS))
        table.add(process)
        table.remove(process)
        process.close()
    series = [*table.series().of(WAITED), *table.series().of(RUN)]
    assert len(series) <= 4 * MOST_PAIRS + 20
    assert not any(one.counts[1] for one in series)
    assert sum(one.counts[0] for one in series) == 12 * MOST_PAIRS * 2**60
    assert {one.labels[1] for one in series} >= {OTHERS}


def test_half_written_series_are_not_read(process: Process) -> None:
    process.own.write_series(full_page())
    # The worker dies while it writes the other copy.
    at = copy_at(2)
    with mmap.mmap(process.page.fd, PAGE_SIZE) as page:
        page[at : at + 100] = b"\xff" * 100
        assert process.page.series == full_page()


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
        assert (await send(port, request_))[0] in {code, 0 if len(request_) > probe_server.MAX_REQUEST else code}
        assert (await get(port, "/livez"))[0] == 200


async def test_head_has_no_body(table: ProcessTable) -> None:
    async with listening(table) as port:
        assert await send(port, b"HEAD /livez HTTP/1.1\r\n\r\n") == (200, b"")


async def test_silent_clients_are_closed_and_bounded(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "PATIENCE", 0.2)
    async with serving(table) as (server, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(probe_server.MAX_CONNECTIONS + 10)]
        assert len(server.open) <= probe_server.MAX_CONNECTIONS
        for reader, _ in silent:
            async with asyncio.timeout(WAIT):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        await until(lambda: not server.open)
        assert (await get(port, "/livez"))[0] == 200
        for _, writer in silent:
            writer.close()


async def test_a_request_may_come_in_parts(table: ProcessTable) -> None:
    async with serving(table) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /li")
        await until(lambda: any(connection.request for connection in list(server.open)))
        writer.write(b"vez HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(WAIT):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_a_server_without_free_files_rests_and_goes_on(
    table: ProcessTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe_server, "REST", 0.05)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with listening(table) as port:
        with socket.socket() as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, allowed[1]))
            try:
                client.connect(("127.0.0.1", port))
                await until(lambda: "cannot accept a connection" in caplog.text)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
        assert (await get(port, "/livez"))[0] == 200


async def test_a_taken_port_is_an_error_of_one_line(table: ProcessTable) -> None:
    async with listening(table) as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*choose another --health-port"):
            listen(Address("127.0.0.1", port))


def test_a_host_with_two_addresses_has_one_port() -> None:
    sockets = listen(Address("localhost", 0))
    assert len({listener.getsockname()[1] for listener in sockets}) == 1
    for listener in sockets:
        listener.close()
