"""`headrace worker --max-jobs` with real processes: no job is interrupted, and no replacement looks like a crash."""

from __future__ import annotations

import signal
import textwrap
import time

import pytest

from cli.shell import Shell, appears, interrupt

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

APP = """
import asyncio, os
from pathlib import Path
from headrace import Headrace

app = Headrace()


@app.task(name="quick")
async def quick() -> None:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")


@app.task(name="gated")
async def gated() -> None:
    Path("started").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
"""


def pids(shell: Shell) -> set[str]:
    return set((shell.folder / "pids").read_text().split())


def test_a_worker_process_is_replaced_after_its_jobs(shell: Shell) -> None:
    (shell.folder / "worn.py").write_text(textwrap.dedent(APP))
    shell("enqueue", "gated", "--raw")
    process = shell.process("worker", "worn:app", "--max-jobs", "3", "--drain", "0s")
    appears(shell.folder / "started")
    for _ in range(3):
        shell("enqueue", "quick", "--raw")
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if "has run 3 of at most 3 jobs: it finishes its jobs" in line:
            break
    # The old process claims nothing more, and keeps its long job although a drain would hand it back at once.
    give_up = time.monotonic() + 60
    while [worker["hindered"] for worker in shell.json("workers")["items"]] != [["quiet"]]:
        assert time.monotonic() < give_up
    shell("enqueue", "quick", "--raw")
    assert len(pids(shell)) == 1
    (shell.folder / "gate").touch()
    shell.reach({"done": 5})
    assert len(pids(shell)) == 2
    assert {(job["state"], job["attempt"]) for job in shell.json("jobs", "list")["items"]} == {("done", 1)}
    _, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, errors
    assert "died" not in "".join(said) + errors
