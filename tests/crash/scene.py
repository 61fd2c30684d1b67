"""Worker processes, the witness and the store of one test; waits for conditions, never for a fixed time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from headrace.model.job import Batch, Job, JobId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import WorkerId
from headrace.store.contract import Store
from headrace.task.task import Task

WAIT = 60.0

FAST = {
    "HEADRACE_APP": "crash.crash_app:app",
    # Short, for many tests wait for it to run out; long enough for a worker that a busy machine keeps waiting.
    "HEADRACE_LEASE": "3s",
    "HEADRACE_HEARTBEAT": "400ms",
    "HEADRACE_POLL": "200ms",
    "HEADRACE_REAP": "200ms",
    "HEADRACE_DRAIN": "40s",
    "HEADRACE_KILL_GRACE": "500ms",
    "HEADRACE_CONCURRENCY": "8",
}

STEADY = {"HEADRACE_LEASE": "1m"}
"""For a worker that no test kills: it keeps its leases through any stall of a busy machine."""

DOOMED = {"HEADRACE_LEASE": "1s", "HEADRACE_HEARTBEAT": "200ms", "HEADRACE_REAP": "1m"}
"""For a worker that dies while it is alone. The test waits for its lease to run out. While the worker lives, no other worker
can take the lease, and it renews a lease that it reaps itself, so a stall of a busy machine does no harm."""

SUPERVISED = """
import sys
from headrace.settings import Settings
from headrace.runtime import logs
from headrace.cli.supervise import supervise
settings = Settings.load()
logs.configure(settings.log_level)
sys.exit(supervise(settings))
"""

PLAIN = """
import asyncio, signal
from headrace.settings import Settings
from headrace.store import connect
from headrace.worker import Worker, parent_watch
from headrace.runtime import logs

async def main():
    settings = Settings.load()
    logs.configure(settings.log_level)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = connect(settings.url)
    await store.open()
    await Worker(parent_watch.load_app(settings.app).tasks, store, settings).run_until(stop)
    await store.close()

asyncio.run(main())
"""


class Scene:
    def __init__(self, url: str, store: Store, witness: Path, folder: Path) -> None:
        self.url = url
        self.store = store
        self._witness = witness
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    # ── processes ───────────────────────────────────────────────────────────
    def start(self, script: str = SUPERVISED, **env: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"worker-{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", script],
                env={**os.environ, **FAST, "HEADRACE_URL": self.url, "PYTHONPATH": os.pathsep.join(sys.path), **env},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    @property
    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("worker-*.log")))

    async def exit_of(self, process: subprocess.Popen[bytes]) -> int:
        await self.until(lambda: process.poll() is not None, "the process ends")
        return int(process.returncode)

    async def joined(self, process: subprocess.Popen[bytes]) -> WorkerId:
        """Wait until it serves its queues: from here on signals do what they should. Returns its id in the store."""
        found: list[WorkerId] = []

        async def seen() -> bool:
            found.extend(each.id for each in await self.store.workers() if each.name.endswith(f":{process.pid}"))
            return bool(found)

        await self.until(seen, "the worker joins")
        return found[0]

    def children(self, process: subprocess.Popen[bytes], module: str = "headrace.worker.child") -> list[psutil.Process]:
        """The supervisor's worker processes that live, or those children that run another module."""
        return [child for child in psutil.Process(process.pid).children() if alive(child) and module in words(child)]

    def clear(self) -> None:
        """End what this test started."""
        for process in self._processes:
            try:
                family = psutil.Process(process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                family = []
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            process.kill()
            process.wait()

    # ── jobs ────────────────────────────────────────────────────────────────
    async def enqueue(self, task: Task[..., Any], *calls: tuple[Any, ...]) -> list[JobId]:
        lane = Lane()
        batch = Batch(new_batch(), [NewJob(task.name, task.codec.encode(args, {}), lane) for args in calls])
        await self.store.enqueue(batch)
        return [job_id(batch.id, ord) for ord in range(len(calls))]

    async def get(self, ids: list[JobId]) -> list[Job]:
        jobs = [job for job in await self.store.get(ids) if job is not None]
        assert len(jobs) == len(ids), "jobs were lost"
        return jobs

    async def finished(self, ids: list[JobId]) -> list[Job]:
        """Wait for every one of them to end."""

        async def over() -> bool:
            return all(job.state.finished for job in await self.get(ids))

        await self.until(over, "every job ends")
        return await self.get(ids)

    def open_gate(self) -> None:
        """Let the jobs of `gated` end."""
        Path(f"{self._witness}.open").touch()

    # ── what really happened ────────────────────────────────────────────────
    def told(self, event: str | None = None) -> list[dict[str, Any]]:
        # A process may be in the middle of writing the last line.
        written, _, _ = self._witness.read_text().rpartition("\n")
        lines = [json.loads(line) for line in written.splitlines()]
        return [line for line in lines if event is None or line["event"] == event]

    def count(self, event: str) -> Counter[int]:
        """How often, by number."""
        return Counter(line["number"] for line in self.told(event))

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        async def wait() -> None:
            while True:
                held = condition()
                if held if isinstance(held, bool) else await held:
                    return
                await asyncio.sleep(0.05)

        try:
            await asyncio.wait_for(wait(), WAIT)
        except TimeoutError:
            raise AssertionError(f"{what}: not within {WAIT:.0f} s; the workers said:\n{self.logs}") from None


def words(process: psutil.Process) -> list[str]:
    """The command line of a process. Empty: it has ended."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def alive(process: psutil.Process) -> bool:
    """Whether it still runs. An ended process stays listed until its parent reads the status, which may never happen."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
