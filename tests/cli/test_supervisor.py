"""The supervisor of `headrace worker`: what it loads, and that the command becomes it without losing anything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from cli.shell import Shell, appears, interrupt
from cli.test_health import address_of, look, until_code
from headrace.supervisor.handover import Handover, read_handover, write_handover
from test_imports import loaded_after

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

RUNTIME = {"headrace.runtime", "headrace.runtime.logs", "headrace.runtime.memory", "headrace.runtime.sighup"}
TOO_MUCH = {
    "asyncio", "concurrent.futures", "dataclasses", "hashlib", "json", "msgspec", "pathlib", "random", "sqlite3", "ssl",
    "subprocess", "tempfile", "uuid",
}  # fmt: skip
"""Modules that cost megabytes, or that belong to a store."""
LIBRARIES = ("msgspec", "_asyncio", "_sqlite3", "_ssl", "_hashlib", "uvloop", "asyncpg")


# ── memory ──────────────────────────────────────────────────────────────────


def test_the_supervisor_loads_no_store_no_driver_and_no_asyncio() -> None:
    loaded = loaded_after("import headrace.supervisor.main")
    own = {module for module in loaded if module.startswith("headrace.")}
    others = {module for module in own if not module.startswith("headrace.supervisor")}
    assert others == {"headrace.errors", *RUNTIME}
    assert not loaded & TOO_MUCH


def test_a_running_supervisor_is_little_more_than_an_interpreter(shell: Shell) -> None:
    """Also one that answers probes and writes JSON, whatever its app loads."""
    (shell.folder / "heavy.py").write_text("import asyncio, ssl, sqlite3\nfrom shop import app as app\n")
    process = shell.process("worker", "heavy:app", "--health-port", "0", "--log-format", "json")
    base = address_of(process)
    until_code(f"{base}/readyz", 200)
    assert look(f"{base}/nothing")[0] == 404
    assert look(f"{base}/metrics")[0] == 200
    supervisor = psutil.Process(process.pid)
    libraries = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    assert [name for name in LIBRARIES if f"/{name}" in libraries] == []
    used = supervisor.memory_info().rss
    assert used < 2 * bare_interpreter()
    [worker] = supervisor.children()
    assert used < worker.memory_info().rss / 2
    # The store's address may hold a password.
    assert not [word for word in supervisor.cmdline() if "sqlite" in word]
    assert supervisor.cmdline()[-3:] == ["headrace", "worker", "heavy:app"]
    interrupt(process, signal.SIGTERM)


def bare_interpreter() -> int:
    """The memory of an interpreter that does nothing."""
    waits = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-S", "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        used = psutil.Process(bare.pid).memory_info().rss
        bare.kill()
    return used


def test_the_handover_keeps_what_it_was_given() -> None:
    handover = Handover(
        processes=2, lease=15.0, heartbeat=0.1, drain=25.0, kill_grace=5.0, max_jobs=0, max_memory=1 << 40,
        log_level="info", log_format="json", path="/a = b:/c\nd\udcff", listeners=(3, 4), config=b"\0\0=\n\xff\0\0",
    )  # fmt: skip
    assert read_handover(write_handover(handover)) == handover
    none = handover._replace(listeners=(), path="", config=b"")
    assert read_handover(write_handover(none)) == none


# ── the command becomes the supervisor ──────────────────────────────────────

APP = """
import atexit, os, subprocess
from pathlib import Path
from headrace import Headrace

app = Headrace()
home = os.getpid()
atexit.register(lambda: Path(f"exit-{home}").touch())


@app.task(name="orphan")
def orphan() -> None:
    whole = subprocess.run(["sh", "-c", "sleep 0.01 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
    Path("orphan.new").write_bytes(whole.stdout)
    Path("orphan.new").rename("orphan")
"""

# As `headrace worker app`, with a line in front that changes its start.
CHANGED = """
import ctypes, os, signal, sys
{line}
sys.argv = ["headrace", "worker", "living:app"]
from headrace.cli import main
main()
"""
TERM_IN_BETWEEN = """
real = os.execv
def execv(*words):
    os.kill(os.getpid(), signal.SIGTERM)
    real(*words)
os.execv = execv
"""


NAME_MODULES = """
def execv(*words):
    print("LOADED", *sys.modules, file=sys.stderr, flush=True)
    os._exit(0)
os.execv = execv
"""


@contextmanager
def running(shell: Shell, line: str = "", files: tuple[int, ...] = ()) -> Generator[subprocess.Popen[str]]:
    (shell.folder / "living.py").write_text(textwrap.dedent(APP))
    process = subprocess.Popen(
        [sys.executable, "-c", CHANGED.format(line=line)],
        cwd=shell.folder,
        env={**os.environ, "HEADRACE_URL": shell.url},
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=files,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_worker(process: subprocess.Popen[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if started := re.search(r"worker process (\d+) started", line):
            return int(started[1])
    raise AssertionError("no worker process")


def test_the_command_loads_no_worker(shell: Shell) -> None:
    """The worker processes load it. In the command it would delay their start."""
    with running(shell, NAME_MODULES) as process:
        _, errors = process.communicate(timeout=120)
    loaded = set(errors.rpartition("LOADED ")[2].split())
    assert "headrace.cli.supervise" in loaded
    assert "headrace.worker" not in loaded


def test_a_signal_while_the_command_becomes_the_supervisor_drains(shell: Shell) -> None:
    with running(shell, TERM_IN_BETWEEN) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "stopping: draining" in errors


def test_what_the_app_registered_for_the_exit_runs_in_the_command(shell: Shell) -> None:
    """Otherwise temporary files of the app would stay behind."""
    with running(shell) as process:
        first_worker(process)
        appears(shell.folder / f"exit-{process.pid}")
        process.terminate()
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_worker_processes_inherit_no_file_of_the_supervisor(shell: Shell) -> None:
    ours, theirs = os.pipe()
    inode = os.fstat(theirs).st_ino
    with running(shell, files=(theirs,)) as process:
        worker = first_worker(process)
        assert f"pipe:[{inode}]" in links(process.pid), "the file stays open, because it may hold a lock"
        assert f"pipe:[{inode}]" not in links(worker)
        process.terminate()
        process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)


def links(pid: int) -> set[str]:
    """What the open files of a process are."""
    targets: set[str] = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.add(str(path.readlink()))
    return targets


def test_the_supervisor_collects_orphans_that_the_system_gives_it(shell: Shell) -> None:
    """As the first process of a container it is the parent of what the tasks leave behind."""
    subreaper = "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    with running(shell, subreaper) as process:
        first_worker(process)
        shell("enqueue", "orphan", "--raw")
        appears(shell.folder / "orphan")
        orphan = int((shell.folder / "orphan").read_text())
        give_up = time.monotonic() + 60
        while psutil.pid_exists(orphan):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        process.terminate()
        process.communicate(timeout=120)
