"""The rows: what a turn of a contestant measures, and how its figures are shown."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.peers.contestants import Words
from benchmarks.peers.entry import Entry
from benchmarks.peers.plan import Plan
from benchmarks.peers.standstill import family, suspended

Statistic = Literal["p50", "p99", "max", "sum"]
_PAUSE: Final = (0.01, 0.03)
"""Seconds between the jobs of the row `pickup`: longer than a job takes, and never the same."""


@dataclass(frozen=True, slots=True)
class Column:
    """One or two figures of a row."""

    heading: str
    figures: tuple[tuple[str, Statistic], ...]
    digits: int = 2
    compares: bool = False
    """Whether the first figure is also shown as a share of that of coroutines."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is measured."""

    says: str
    measure: Callable[[Entry, Plan], None]
    columns: tuple[Column, ...]
    works: bool = True
    """Whether it needs a worker."""
    once: bool = False
    """Whether the first round is enough, because it counts what other load of the machine does not change."""


# ── without a worker ─────────────────────────────────────────────────────────


def _single(entry: Entry, plan: Plan) -> None:
    entry.order("single", count=20)
    entry.samples.values["single"] += entry.order("single", count=plan.singles)["ms"]


def _import(entry: Entry, _: Plan) -> None:
    _timed(entry, "import", entry.contestant.import_it)


def _help(entry: Entry, _: Plan) -> None:
    _timed(entry, "help", entry.contestant.help_it)


def _timed(entry: Entry, name: str, words: Words | None) -> None:
    """Milliseconds of CPU, which other programs on the machine lengthen less than the time; and the time."""
    if words is None:
        return
    if f"{name} cpu" not in entry.samples.values:
        entry.run(words)  # compiles what the others only load
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    entry.run(words)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    entry.samples.values[f"{name} cpu"].append(1000 * cpu)
    entry.samples.values[f"{name} wall"].append(1000 * (ended - began))


# ── with a worker ────────────────────────────────────────────────────────────


def _pickup(entry: Entry, plan: Plan) -> None:
    entry.order("paced", gaps=[random.uniform(*_PAUSE) for _ in range(plan.pickups)])
    entry.samples.values["pickup"] += entry.ages(plan.pickups)


def _paced(entry: Entry, plan: Plan) -> None:
    entry.order("paced", gaps=[1 / plan.rate] * plan.paced)
    entry.samples.values["paced"] += entry.ages(plan.paced)


def _scripts(entry: Entry, plan: Plan) -> None:
    for _ in range(plan.scripts):
        for name, interrupted in (("script", False), ("interrupted", True)):
            script = entry.script(interrupted=interrupted)
            entry.samples.values[f"{name} exit"].append(script.exit)
            entry.samples.values[f"{name} start"].append(script.start)


def _idle(entry: Entry, plan: Plan) -> None:
    """The calls of an idle worker as its server counts them, and the memory of its processes."""
    place, values = entry.place, entry.samples.values
    if place.calls is not None:
        time.sleep(place.counted_after)
        calls = _calls(entry, plan.idle)
        if place.counts_all:
            # The idle producers of the others are counted, too, and the look itself.
            with suspended(entry.worker_pid, entry.url):
                calls -= _calls(entry, plan.idle)
        values["calls"].append(max(0, calls) / plan.idle)
    first, *others = (process.memory_info().rss / 2**20 for process in family(entry.worker_pid))
    values["rss"].append(first)
    values["rss of children"].append(sum(others))


def _calls(entry: Entry, seconds: float) -> int:
    assert entry.place.calls is not None
    before = entry.place.calls(entry.url)
    time.sleep(seconds)
    return entry.place.calls(entry.url) - before


def _drain(entry: Entry, plan: Plan) -> None:
    _fill_and_drain(entry, plan, "good")


def _fail_once(entry: Entry, plan: Plan) -> None:
    """The time per job of jobs that fail once, and of the same jobs that do not, in turns."""
    if entry.contestant.fails:
        for name in ("good", "failing"):
            rate = _fill_and_drain(entry, plan, name, fails=name == "failing")
            entry.samples.values[f"{name} us"].append(1e6 / rate)


def _payload(entry: Entry, plan: Plan) -> None:
    for size in plan.sizes:
        _fill_and_drain(entry, plan, _sized(size), size=size)


def _fill_and_drain(entry: Entry, plan: Plan, name: str, *, size: int = 100, fails: bool = False) -> float:
    """Enqueue a backlog in calls of 1,000 while the worker stands still, then let it run: jobs per second of both.

    The first backlog is small and does not count: it says how many jobs the others have.
    """

    def measured(count: int) -> tuple[float, float]:
        with suspended(entry.worker_pid, entry.url):
            filled = count / entry.order("bulk", count=count, every=count, size=size, fails=fails)["s"]
        began = time.monotonic()
        entry.ages(1)
        return filled, count / (time.monotonic() - began)

    if name not in entry.counts:
        most = max(4, plan.bytes // size)
        fewest = min(most, 500, max(4, 2_000_000 // size))
        entry.counts[name] = max(fewest, min(most, int(plan.busy * min(measured(fewest)))))
    filled, drained = measured(entry.counts[name])
    entry.samples.values[f"{name} bulk"].append(filled)
    entry.samples.values[f"{name} drain"].append(drained)
    return drained


def _sized(size: int) -> str:
    return f"{size // 1000:,} KB" if size < 1_000_000 else f"{size // 1_000_000} MB"


_SIZES: Final = tuple(map(_sized, Plan().sizes))

ROWS: Final[Mapping[str, Row]] = {
    "single": Row(
        "one enqueue per call without a worker, beside one raw write",
        _single,
        (Column("single p50 / p99, ms", (("single", "p50"), ("single", "p99"))),),
        works=False,
    ),
    "import": Row(
        "a process that imports the package and ends",
        _import,
        (Column("import CPU / wall, ms", (("import cpu", "p50"), ("import wall", "p50")), 0),),
        works=False,
    ),
    "help": Row(
        "the command with --help",
        _help,
        (Column("--help CPU / wall, ms", (("help cpu", "p50"), ("help wall", "p50")), 0),),
        works=False,
    ),
    "paced": Row(
        "500 jobs per second, one per call, from the start of the call to the start of the job",
        _paced,
        (Column("500/s p50 / p99, ms", (("paced", "p50"), ("paced", "p99"))),),
    ),
    "pickup": Row(
        "the same for single jobs that meet an idle worker",
        _pickup,
        (Column("pickup p50 / p99, ms", (("pickup", "p50"), ("pickup", "p99"))),),
    ),
    "script": Row(
        "a script that enqueues one job and ends, by itself or by Ctrl-C, from the answer of the call",
        _scripts,
        (
            Column("exit p50 / max, ms", (("script exit", "p50"), ("script exit", "max")), 0),
            Column("job starts p50 / max, ms", (("script start", "p50"), ("script start", "max")), 1),
            Column("Ctrl-C: exit p50 / max, ms", (("interrupted exit", "p50"), ("interrupted exit", "max")), 0),
            Column("job starts p50 / max, ms", (("interrupted start", "p50"), ("interrupted start", "max")), 1),
        ),
    ),
    "idle": Row(
        "an idle worker: calls that the server counts (Redis: commands, PostgreSQL: transactions), and memory",
        _idle,
        (
            Column("calls/s", (("calls", "p50"),), 1),
            Column("RSS, its children, MiB", (("rss", "p50"), ("rss of children", "p50")), 0),
        ),
        once=True,
    ),
    "drain": Row(
        "a backlog of small jobs: enqueued in calls of 1,000, then run by one worker",
        _drain,
        (Column("drain / bulk, jobs/s", (("good drain", "p50"), ("good bulk", "p50")), 0, compares=True),),
    ),
    "fail": Row(
        "the same with jobs whose first attempt fails and that are retried at once, beside jobs that do not fail",
        _fail_once,
        (Column("fails once / good, µs per job", (("failing us", "p50"), ("good us", "p50")), 1),),
    ),
    "payload": Row(
        "backlogs of jobs of 1 KB to 1 MB that hardly compress, and the temporary files of PostgreSQL",
        _payload,
        (
            *(
                Column(f"{each} drain / bulk", ((f"{each} drain", "p50"), (f"{each} bulk", "p50")), 0)
                for each in _SIZES
            ),
            Column("temp files, MB", (("temp", "sum"),), 1),
        ),
    ),
}
