"""A folder with an app and a store, and two ways to call `headrace`: in this process and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from headrace.cli.root import root
from headrace.model.job import Batch, Failure, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Again, Finish
from headrace.model.step import Step
from headrace.store import connect

APP = """
from headrace import Headrace, Retry

app = Headrace()
other = object()


app.event("approved", bool)


@app.task(name="shop.charge", queue="billing", redact=["card"])
async def charge(order: int, shop: str, card: str = "none") -> str:
    return f"{shop} paid {order}"


@app.task(name="shop.fail", retry=Retry(max_attempts=1))
async def fail(why: str) -> None:
    raise ValueError(why)
"""


@dataclass
class Shell:
    """A folder in which commands are called."""

    folder: Path
    url: str

    def __call__(self, *args: str, code: int | None = 0, input: str | None = None, url: bool = True) -> Result:
        """Call a command in this process."""
        given = [*args, "--url", self.url] if url else list(args)
        result = CliRunner().invoke(root, given, input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if code is not None:
            assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int = 0, url: bool = True) -> Any:
        """The one document on stdout."""
        return json.loads(self(*args, "--json", code=code, url=url).stdout)

    def error(self, *args: str, code: int, input: str | None = None, url: bool = True) -> str:
        """The one line on stderr."""
        result = self(*args, code=code, input=input, url=url)
        lines = result.stderr.strip().splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("error: "), result.stderr
        return lines[0].removeprefix("error: ")

    def process(self, *args: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command as a process of its own."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *args],
            cwd=self.folder,
            env={**env, "HEADRACE_URL": self.url, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # ── what the commands find ──────────────────────────────────────────────

    def put(self, count: int = 1, *, task: str = "shop.charge", queue: str = "default", **lane: Any) -> list[JobId]:
        """Ready jobs."""
        return self.put_in([Lane(queue=queue, **lane)] * count, task=task)

    def put_in(self, lanes: Sequence[Lane], *, task: str = "shop.charge") -> list[JobId]:
        """A ready job in each of these lanes."""

        async def act() -> list[JobId]:
            store = connect(self.url)
            await store.open()
            try:
                payload = msgspec.msgpack.encode(([7, "acme"], {"card": "visa-4242"}))
                batch = Batch(new_batch(), [NewJob(task, payload, lane) for lane in lanes])
                await store.enqueue(batch)
                return [job_id(batch.id, place) for place in range(len(lanes))]
            finally:
                await store.close()

        return asyncio.run(act())

    def end(self, queue: str, state: JobState, *, message: str = "no money") -> None:
        """Run every ready job of a queue to this end."""

        async def act() -> None:
            store = connect(self.url)
            await store.open()
            try:
                worker = new_worker_id()
                while True:
                    ask = Ask(worker, (queue,), 100, timedelta(seconds=15), new_token())
                    lease = await store.claim(ask)
                    if lease is None:
                        return
                    failure = None
                    if state is JobState.DEAD:
                        at = datetime.now(UTC)
                        failure = Failure(1, "builtins.ValueError", message, "Traceback …\n  line\n", at, "host:1")
                    finish = Finish(state, note="max_attempts" if failure else None, failure=failure, failures=1)  # type: ignore[arg-type]
                    await store.settle(lease.token, [(place, finish) for place in range(len(lease.jobs))])
            finally:
                await store.close()

        asyncio.run(act())

    def steps(self, id: JobId, *names: str) -> None:
        """A worker has finished these steps of the job, each with the result 7, and handed the job back."""

        async def act() -> None:
            store = connect(self.url)
            await store.open()
            try:
                lease = await store.claim(Ask(new_worker_id(), ("default",), 1, timedelta(minutes=1), new_token()))
                assert lease is not None
                assert lease.jobs[0].id == id
                at = datetime(2026, 1, 1, tzinfo=UTC)
                await store.add_steps(lease.token, [(0, Step(name, 0, b"", b"\x07", at)) for name in names])
                await store.settle(lease.token, [(0, Again(0, 0))])
            finally:
                await store.close()

        asyncio.run(act())

    def dead(self, count: int = 1, **job: Any) -> list[JobId]:
        """Dead jobs."""
        ids = self.put(count, **job)
        self.end(job.get("queue", "default"), JobState.DEAD)
        return ids

    def reach(self, states: dict[str, int]) -> None:
        """Wait until there are so many jobs of each state."""
        give_up = time.monotonic() + 60
        while (found := self.states()) != states:
            assert time.monotonic() < give_up, found
            time.sleep(0.05)

    def states(self) -> dict[str, int]:
        """How many jobs there are of each state."""
        counts: dict[str, int] = {}
        before: Sequence[str] = ()
        while True:
            page = self.json("jobs", "list", "--limit", "1000", *before)
            for job in page["items"]:
                counts[job["state"]] = counts.get(job["state"], 0) + 1
            if page["next"] is None:
                return counts
            before = ("--before", page["next"])


def interrupt(process: subprocess.Popen[str], how: signal.Signals = signal.SIGINT) -> tuple[str, str]:
    """End a process as a terminal would, and read what it said."""
    process.send_signal(how)
    return process.communicate(timeout=60)


def appears(path: Path) -> None:
    """Wait until another process has made the file."""
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, path
        time.sleep(0.01)
