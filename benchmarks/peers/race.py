"""One race: rounds in which each contestant has its turn, so that a busy minute of the machine hits all of them alike."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil  # type: ignore[import-untyped]

from benchmarks.peers.contestants import ROOT, Contestant, Words
from benchmarks.peers.places import SQLITE

_WAIT: Final = 120.0
"""Seconds after which a contestant that does not go on is given up."""
_GRACE: Final = 30.0
_IDLE: Final = (0.01, 0.03)
"""Seconds between the jobs of the row `pickup`: longer than a job takes, and never the same."""


class GivenUp(Exception):
    """A contestant did not do what it was told to."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much each turn measures."""

    rounds: int = 5
    singles: int = 200
    pickups: int = 50
    paced: int = 500
    rate: float = 500.0
    large: int = 400
    size: int = 100_000
    workers: bool = True
    """False: only the rows that need none."""


@dataclass(slots=True)
class Samples:
    """What the turns of one contestant gave. Milliseconds, or jobs per second."""

    single: list[float] = field(default_factory=list[float])
    pickup: list[float] = field(default_factory=list[float])
    paced: list[float] = field(default_factory=list[float])
    payload: list[float] = field(default_factory=list[float])
    imports: list[float] = field(default_factory=list[float])
    given_up: str | None = None


class Entry:
    """A contestant with its producer, which lives as long as the run, and its database."""

    def __init__(self, contestant: Contestant, url: str, environment: dict[str, str], folder: Path) -> None:
        self.contestant = contestant
        self.samples = Samples()
        self._url = url
        self._pipe_path = folder / f"{contestant.name.replace(' ', '-')}.pipe"
        os.mkfifo(self._pipe_path)
        # Open for both, so that it has no end while no worker has it open.
        self._pipe = os.open(self._pipe_path, os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""
        self._order = 0
        self._environment = {**environment, "PEERS_URL": url, "PEERS_PIPE": str(self._pipe_path)}
        self._log = (folder / f"{contestant.name.replace(' ', '-')}.log").open("w+b")
        self._producer = self._start(contestant.produce, piped=True)

    def prepare(self) -> None:
        """Wait for the producer, and let the first import compile what the others only load."""
        self._carry_out(self._prepare)

    def turn(self, plan: Plan) -> None:
        """One round: each row once."""
        self._carry_out(lambda: self._turn(plan))

    def _carry_out(self, act: Callable[[], None]) -> None:
        """A contestant that fails leaves the race."""
        if self.samples.given_up is not None:
            return
        try:
            act()
        except (GivenUp, OSError, subprocess.CalledProcessError) as error:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()
            self.samples.given_up = f"{error}; {said[-300:]}"

    def close(self) -> None:
        _end(self._producer)
        os.close(self._pipe)
        self._log.close()

    # ── rows ─────────────────────────────────────────────────────────────────

    def _prepare(self) -> None:
        self._ask(None)
        if self.contestant.import_it is not None:
            self._import(self.contestant.import_it)

    def _turn(self, plan: Plan) -> None:
        self._ask({"do": "single", "count": 20})
        self.samples.single += self._ask({"do": "single", "count": plan.singles})["ms"]
        if self.contestant.work is not None and plan.workers:
            with self._worker(self.contestant.work) as worker:
                self._ages(plan.singles)
                self.samples.pickup += self._paced([random.uniform(*_IDLE) for _ in range(plan.pickups)])
                self.samples.paced += self._paced([1 / plan.rate] * plan.paced)
                self.samples.payload.append(self._drained(worker, plan))
        if self.contestant.import_it is not None:
            self.samples.imports.append(self._import(self.contestant.import_it))

    def _drained(self, worker: subprocess.Popen[bytes], plan: Plan) -> float:
        """Large jobs per second of a worker that is ready when they are all there: it stands still while they are stored."""
        with suspended(worker.pid, self._url):
            self._ask({"do": "bulk", "count": plan.large, "size": plan.size})
        began = time.monotonic()
        self._ages(plan.large)
        return plan.large / (time.monotonic() - began)

    def _import(self, words: Words) -> float:
        """Milliseconds of CPU, which other programs on the machine lengthen less than the time."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, env=self._environment, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def _paced(self, gaps: Sequence[float]) -> list[float]:
        self._ask({"do": "paced", "gaps": gaps})
        return self._ages(len(gaps))

    # ── processes ────────────────────────────────────────────────────────────

    def _start(self, words: Words, *, piped: bool = False) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else self._log,
            stderr=self._log,
            env=self._environment,
            cwd=ROOT,
            start_new_session=True,
        )

    @contextmanager
    def _worker(self, words: Words) -> Generator[subprocess.Popen[bytes]]:
        worker = self._start(words)
        try:
            yield worker
        finally:
            _end(worker)

    def _ask(self, order: dict[str, Any] | None) -> dict[str, Any]:
        producer = self._producer
        assert producer.stdin is not None
        assert producer.stdout is not None
        if order is not None:
            self._order += 1
            producer.stdin.write(json.dumps({**order, "number": self._order}).encode() + b"\n")
            producer.stdin.flush()
        ready, _, _ = select.select([producer.stdout], [], [], _WAIT)
        line = producer.stdout.readline() if ready else b""
        if not line:
            raise GivenUp("the producer does not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ages(self, count: int) -> list[float]:
        """The ages in milliseconds at which the jobs of the last order started.

        A job of an earlier order that runs again, because its worker ended too early, is not counted.
        """
        ages: list[float] = []
        while len(ages) < count:
            ready, _, _ = select.select([self._pipe], [], [], _WAIT)
            if not ready:
                raise GivenUp(f"the worker has run {len(ages)} of {count} jobs")
            *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 16)).split(b"\n")
            for line in lines:
                order, age = map(int, line.split())
                if order == self._order:
                    ages.append(age / 1e6)
        return ages


@contextmanager
def suspended(pid: int, url: str) -> Generator[None]:
    """Let a process and its children stand still, at a moment at which none of them holds the lock of a SQLite file."""
    first = psutil.Process(pid)
    # A worker may have processes in groups of their own.
    processes = [first, *first.children(recursive=True)]
    try:
        _suspend(processes)
        while _holds_lock(processes, url):
            _resume(processes)
            time.sleep(random.uniform(*_IDLE))
            _suspend(processes)
        yield
    finally:
        _resume(processes)


def _suspend(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    # The signal only asks for it: a thread that is in the kernel goes on for a moment.
    while not all(_stands_still(process.pid) for process in processes):
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    """Whether each thread of a process is stopped, or has ended."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "TtZX" for state in states)


def _resume(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.resume()


def _holds_lock(processes: Sequence[psutil.Process], url: str) -> bool:
    """Whether a writer would wait for these processes. Servers let their writers in while a client stands still."""
    if not url.startswith(SQLITE):
        return False
    # headrace takes a file lock before that of SQLite, and releases it afterwards.
    pids = {process.pid for process in processes}
    held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    if any(words[1] == "FLOCK" and int(words[4]) in pids for words in held):
        return True
    with closing(sqlite3.connect(url.removeprefix(SQLITE), timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """A producer ends with its input, a worker when it is told to. Each is the leader of a group of its own."""
    if process.stdin is not None:
        with suppress(OSError):  # it may have ended, with an order unread
            process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def race(contestants: Sequence[tuple[Contestant, str]], plan: Plan, environment: dict[str, str]) -> dict[str, Samples]:
    """Contestants, each with the URL of its database; what each of them gave, by name."""
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as folder, ExitStack() as stack:
        entries = [Entry(contestant, url, environment, Path(folder)) for contestant, url in contestants]
        for entry in entries:
            stack.callback(entry.close)
            entry.prepare()
        for number in range(plan.rounds):
            # Each round begins with another contestant, so that none always follows the same one.
            first = number % len(entries)
            for entry in entries[first:] + entries[:first]:
                entry.turn(plan)
        return {entry.contestant.name: entry.samples for entry in entries}
