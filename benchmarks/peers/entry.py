"""A contestant in a race: its producer, its worker, and how the run talks to them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil  # type: ignore[import-untyped]

from benchmarks.peers.contestants import ROOT, Contestant, Words
from benchmarks.peers.places import Place
from benchmarks.peers.plan import Samples

_WAIT: Final = 120.0
"""Seconds after which a contestant that does not go on is given up."""
_GRACE: Final = 30.0


class GivenUp(Exception):
    """A contestant did not do what it was told to."""


class Script(NamedTuple):
    """A script that enqueued one job: milliseconds from the answer of its call."""

    exit: float
    """To the end of the process."""
    start: float
    """To the start of the job. Below zero: the job started first."""


class Entry:
    """A contestant with its producer, which lives as long as the run, and its database."""

    def __init__(self, contestant: Contestant, place: Place, environment: Mapping[str, str], folder: Path) -> None:
        self.contestant = contestant
        self.place = place
        self.url = place.fresh()
        self.samples = Samples()
        self.counts: dict[str, int] = {}
        """How many jobs each kind of backlog has."""
        self._worker: subprocess.Popen[bytes] | None = None
        self._pipe_path = folder / f"{contestant.name.replace(' ', '-')}.pipe"
        os.mkfifo(self._pipe_path)
        # Open for both, so that it has no end while no worker has it open.
        self._pipe = os.open(self._pipe_path, os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""
        self._order = 0
        self._environment = {**environment, "PEERS_URL": self.url, "PEERS_PIPE": str(self._pipe_path)}
        self._log = (folder / f"{contestant.name.replace(' ', '-')}.log").open("w+b")
        self._producer = self._start(contestant.produce, piped=True)

    def carry_out(self, act: Callable[[], None]) -> None:
        """Do one part of the race. A contestant that fails leaves it."""
        if self.samples.given_up is not None:
            return
        try:
            act()
        except (GivenUp, OSError, subprocess.SubprocessError, psutil.Error) as error:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()
            self.samples.given_up = f"{error}; {said[-300:]}"

    def close(self) -> None:
        _end(self._producer)
        os.close(self._pipe)
        self._log.close()

    # ── for the rows ─────────────────────────────────────────────────────────

    def ready(self) -> None:
        """Wait for the producer."""
        self._answer(self._producer)

    def order(self, do: str, **what: Any) -> dict[str, Any]:
        """Give the producer an order. Returns what it answers when it has carried it out."""
        self._order += 1
        assert self._producer.stdin is not None
        self._producer.stdin.write(json.dumps({"do": do, **what, "number": self._order}).encode() + b"\n")
        self._producer.stdin.flush()
        return self._answer(self._producer)

    def ages(self, count: int) -> list[float]:
        """The ages in milliseconds at which the jobs of the last order started.

        A job of an earlier order that runs again, because its worker ended too early, is not counted.
        """
        ages: list[float] = []
        while len(ages) < count:
            ready, _, _ = select.select([self._pipe], [], [], _WAIT)
            if not ready:
                raise GivenUp(f"the worker has reported {len(ages)} of {count} jobs")
            *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 16)).split(b"\n")
            for line in lines:
                order, age = map(int, line.split())
                if order == self._order:
                    ages.append(age / 1e6)
        return ages

    def script(self, *, interrupted: bool) -> Script:
        """Run a script that enqueues one job and ends, or that goes on until it gets the signal of Ctrl-C."""
        self._order += 1
        words = (*self.contestant.once, str(self._order), *(["waits"] if interrupted else []))
        with self._start(words, answers=True) as process:
            said = self._answer(process)
            if interrupted:
                process.send_signal(signal.SIGINT)
            ended = _ended(process)
        (age,) = self.ages(1)
        return Script((ended - said["answered"]) / 1e6, age + (said["began"] - said["answered"]) / 1e6)

    def run(self, words: Words) -> None:
        """Run a command that writes nothing that matters, to its end."""
        subprocess.run(words, check=True, env=self._environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=self._log)

    @contextmanager
    def working(self) -> Generator[None]:
        """Run the worker, and wait until it has run what was left from before."""
        assert self.contestant.work is not None
        self._worker = self._start(self.contestant.work)
        try:
            self.order("single", count=20)
            self.ages(20)
            yield
        finally:
            _end(self._worker)

    @property
    def worker_pid(self) -> int:
        assert self._worker is not None
        return self._worker.pid

    # ── processes ────────────────────────────────────────────────────────────

    def _start(self, words: Words, *, piped: bool = False, answers: bool = False) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped or answers else self._log,
            stderr=self._log,
            env=self._environment,
            cwd=ROOT,
            start_new_session=True,
        )

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _WAIT)
        line = process.stdout.readline() if ready else b""
        if not line:
            raise GivenUp("the producer does not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _ended(process: subprocess.Popen[bytes]) -> int:
    """When a process has ended. `wait` with a limit looks only from time to time."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not select.select([descriptor], [], [], _WAIT)[0]:
            process.kill()
            raise GivenUp("the script does not end")
        return time.monotonic_ns()
    finally:
        os.close(descriptor)


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
