"""`--health-port`: /livez, /readyz and /metrics of a whole `headrace worker`, answered by its supervisor.

The supervisor runs no tasks, so its event loop answers while tasks block the loops of the workers. Requests get little: a
bounded number of connections, a few seconds and a few kilobytes each, and one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import NamedTuple

import msgspec

from headrace.errors import ConfigError
from headrace.worker.figures import WorkerFigures
from headrace.worker.process_table import ProcessTable, WorkerProcess
from headrace.worker.service import log

MAX_CONNECTIONS = 32
PATIENCE = 5.0
"""Seconds for a request and its answer."""
MAX_REQUEST = 8 * 1024
BLOCKED = 60.0
"""Seconds after which a blocked event loop is no longer alive."""
STUCK = 5.0
"""Seconds after which a worker with a blocked event loop is not ready."""

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class _Reply(NamedTuple):
    code: int
    kind: str
    body: bytes


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class WorkerHealth:
    """What the probes and the metrics say, read from the shared pages."""

    def __init__(self, table: ProcessTable) -> None:
        self._table = table

    def not_alive(self) -> str:
        """Why the whole should be started again. Empty: it should not. A store that is away is no reason."""
        serving = [process for process in self._table.processes if process.page.figures.serving]
        if serving and all(_silence(process) > BLOCKED for process in serving):
            return f"the event loop of every worker process has been blocked for more than {BLOCKED:g} s"
        return ""

    def not_ready(self) -> str:
        """Why no worker process takes jobs now. Empty: at least one does."""
        if self._table.stop.is_set():
            return "draining: the workers claim nothing more"
        problems = [_problem(process) for process in self._table.processes]
        if "" in problems:
            return ""
        return next(iter(problems), "no worker process runs")

    def exposition(self) -> str:
        """The figures in Prometheus' text format."""
        lines: list[str] = []
        for name, kind, text, label, values in self._metrics():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}" for key, value in values]
        return "\n".join(lines) + "\n"

    def _metrics(self) -> Iterator[tuple[str, str, str, str, list[tuple[str, int]]]]:
        now = [process.page.figures for process in self._table.processes]
        total = self._table.totals()

        def sums(*names: str) -> list[tuple[str, int]]:
            return [(name.rpartition("_")[2], sum(getattr(figures, name) for figures in now)) for name in names]

        serving = sum(figures.serving for figures in now)
        yield (
            "headrace_worker_processes",
            "gauge",
            "Worker processes, by whether they serve their queues.",
            "state",
            [("serving", serving), ("starting", len(now) - serving)],
        )
        yield (
            "headrace_worker_process_starts_total",
            "counter",
            "Worker processes started, replacements included.",
            "",
            [("", self._table.starts)],
        )
        yield (
            "headrace_worker_ready",
            "gauge",
            "Whether /readyz answers 200.",
            "",
            [("", int(not self.not_ready()))],
        )
        yield "headrace_worker_slots", "gauge", "Jobs that may run at once.", "", sums("slots")
        yield (
            "headrace_worker_executor_slots",
            "gauge",
            "Threads for sync tasks and child processes for process tasks, at most.",
            "executor",
            [
                ("thread", sum(figures.threads for figures in now)),
                ("process", sum(figures.processes for figures in now)),
            ],
        )
        running = ("running_async", "running_thread", "running_process")
        yield "headrace_worker_running", "gauge", "Jobs that run.", "executor", sums(*running)
        yield "headrace_worker_waiting", "gauge", "Jobs that are claimed and have not started.", "", sums("waiting")
        yield (
            "headrace_worker_claimed_total",
            "counter",
            "Jobs claimed.",
            "",
            [("", total.claimed)],
        )
        ends = ("succeeded", "failed", "snoozed", "cancelled", "released", "crashed", "lost")
        yield (
            "headrace_worker_ended_total",
            "counter",
            "Attempts ended, by how.",
            "outcome",
            [(name, getattr(total, name)) for name in ends],
        )
        calls = {"claim": total.claims, "settle": total.settlements, "heartbeat": total.heartbeats}
        yield "headrace_worker_store_calls_total", "counter", "Calls of the store.", "call", list(calls.items())


def _silence(process: WorkerProcess) -> float:
    return monotonic() - process.page.pulse


def _problem(process: WorkerProcess) -> str:
    figures: WorkerFigures = process.page.figures
    if not figures.serving:
        return f"worker {process.name} does not serve its queues yet"
    if _silence(process) > STUCK:
        return f"the event loop of worker {process.name} is blocked"
    if figures.away:
        return f"worker {process.name} does not reach its store"
    return f"worker {process.name} claims nothing more" if figures.quiet else ""


class HealthServer:
    """A small HTTP server: GET and HEAD, one request per connection."""

    def __init__(self, health: WorkerHealth) -> None:
        self._health = health
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, address: Address) -> Address:
        """Listen. Returns the address, with the port that the system chose for port 0."""
        try:
            self._server = await asyncio.start_server(self._take, *address, limit=MAX_REQUEST)
        except OSError as error:
            raise ConfigError(
                f"the health endpoint cannot listen on {address}: {error.strerror or error}; choose another --health-port"
            ) from None
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="headrace-health")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                writer.write(await self._answer(reader))
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # The client left, or it was too slow.
        except Exception:  # noqa: BLE001  # no request may end the supervisor
            log.exception("the health endpoint failed to answer a request")
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _written(_refusal(400, "not an HTTP request"), head=False)
        method, target = _read(head)
        if not target:
            return _written(_refusal(400, "not an HTTP request"), head=False)
        if method not in {"GET", "HEAD"}:
            return _written(_refusal(405, "use GET"), head=False)
        return _written(self._route(target.partition("?")[0]), head=method == "HEAD")

    def _route(self, path: str) -> _Reply:
        probes: dict[str, Callable[[], str]] = {"/livez": self._health.not_alive, "/readyz": self._health.not_ready}
        if path in probes:
            problem = probes[path]()
            return _refusal(503, problem) if problem else _Reply(200, _JSON, b'{"status":"ok"}')
        if path == "/metrics":
            return _Reply(200, _TEXT, self._health.exposition().encode())
        return _refusal(404, "there are /livez, /readyz and /metrics")


def _read(head: bytes) -> tuple[str, str]:
    """Method and target of a request; empty: it is none."""
    parts = head.partition(b"\r\n")[0].split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].startswith(b"/"):
        return "", ""
    with suppress(UnicodeDecodeError):
        return parts[0].decode("ascii"), parts[1].decode("ascii")
    return "", ""


def _refusal(code: int, reason: str) -> _Reply:
    return _Reply(
        code, _JSON, msgspec.json.encode({"status": "unavailable" if code == 503 else "error", "reason": reason})
    )


def _written(reply: _Reply, *, head: bool) -> bytes:
    fields = (
        f"HTTP/1.1 {reply.code} {_REASONS[reply.code]}",
        f"Content-Type: {reply.kind}",
        f"Content-Length: {len(reply.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return "\r\n".join((*fields, "", "")).encode() + (b"" if head else reply.body)


@asynccontextmanager
async def answering(table: ProcessTable, address: Address) -> AsyncGenerator[Address]:
    """Answer on that address while the block runs."""
    server = HealthServer(WorkerHealth(table))
    bound = await server.start(address)
    log.info("health endpoint: http://%s/livez, /readyz and /metrics", bound)
    try:
        yield bound
    finally:
        await server.stop()
