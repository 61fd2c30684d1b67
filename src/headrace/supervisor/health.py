"""What the probes and the metrics of `headrace worker` say, read from the shared pages of its processes."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

from headrace.supervisor.figures import WorkerFigures
from headrace.supervisor.process_table import ProcessTable, WorkerProcess
from headrace.supervisor.series import FAMILIES, family_lines

BLOCKED = 60.0
"""Seconds after which a blocked event loop is no longer alive."""
STUCK = 5.0
"""Seconds after which a worker with a blocked event loop is not ready."""


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
        if self._table.stopping:
            return "draining: the workers claim nothing more"
        problems = [_problem(process) for process in self._table.processes]
        if "" in problems:
            return ""
        return next(iter(problems), "no worker process runs")

    def exposition(self) -> bytes:
        """The figures in Prometheus' text format. They are written line by line, so that the supervisor stays small."""
        page = bytearray()
        for line in self._lines():
            page += f"{line}\n".encode()
        return bytes(page)

    def _lines(self) -> Iterator[str]:
        for name, kind, text, label, values in self._metrics():
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} {kind}"
            for key, value in values:
                yield f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}"
        series = self._table.series()
        for place, family in enumerate(FAMILIES):
            yield from family_lines(family, series.of(place))

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
        yield (
            "headrace_worker_settle_batches_total",
            "counter",
            "Settle calls that the store has answered.",
            "",
            [("", total.batches)],
        )
        yield "headrace_worker_settled_total", "counter", "Jobs that these calls settled.", "", [("", total.settled)]


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
