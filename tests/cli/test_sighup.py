"""A closed terminal: what runs is finished, also if it prints, and the processes end well."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import Shell

APP = """
import asyncio
import os
import time

from headrace import Headrace, Retry

app = Headrace()


def gone() -> bool:
    return os.path.realpath("/proc/self/fd/1") == os.devnull


@app.task(name="awaited", retry=Retry(max_attempts=1))
async def awaited() -> None:
    print("begun", flush=True)
    while not gone():
        await asyncio.sleep(0.01)
    print("into the dark", flush=True)


@app.task(name="apart", executor="process", retry=Retry(max_attempts=1))
def apart() -> None:
    print("begun", flush=True)
    while not gone():
        time.sleep(0.01)
    print("into the dark", flush=True)
"""

# Becomes the leader of a session whose terminal is the given one, as a terminal's window does it.
TERMINAL = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def in_a_terminal(folder: Path, url: str, *args: str) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and our end of its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, sys.executable, "-m", "headrace.cli", *args],
        cwd=folder,
        env={**os.environ, "HEADRACE_URL": url, "COLUMNS": "80", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, text: bytes) -> None:
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 65536)


@pytest.mark.parametrize("task", ["awaited", "apart"])
@pytest.mark.parametrize("command", [("dev", "--no-server"), ("worker", "--processes", "1")])
def test_what_runs_is_finished(shell: Shell, command: tuple[str, ...], task: str) -> None:
    (shell.folder / "talking.py").write_text(APP)
    shell("enqueue", task, "--app", "talking:app")
    process, terminal = in_a_terminal(shell.folder, shell.url, command[0], "talking:app", *command[1:])
    try:
        read_until(terminal, b"begun\r\n")  # the whole line: its end would fail on a terminal that is gone
    finally:
        os.close(terminal)
    assert process.wait(timeout=60) == 0
    (job,) = shell.json("jobs", "list")["items"]
    assert (job["state"], job["attempt"], job["failures"]) == ("done", 1, 0)


def test_a_server_ends_well(shell: Shell) -> None:
    process, terminal = in_a_terminal(shell.folder, shell.url, "serve", "shop:app", "--port", "0")
    try:
        read_until(terminal, b"http://127.0.0.1:")
    finally:
        os.close(terminal)
    assert process.wait(timeout=60) == 0
