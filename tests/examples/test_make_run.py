"""`make run` on a terminal: Ctrl-C drains the demo, and the demo does not outlive a `make` that is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from cli.terminal import open_terminal, read_all
from servers.process import free_port

ROOT = Path(__file__).parents[2]
PATIENCE = 120


class Terminal:
    """A shell in front of a terminal, which runs `make run`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.printed = ""
        # The shell stays until it is told to go on. Its end would hang up the terminal, and the demo would end of that.
        self._gate = folder / "gate"
        os.mkfifo(self._gate)
        self._ours, theirs = open_terminal()
        self._process = subprocess.Popen(
            [
                "setsid",
                "--ctty",
                "sh",
                "-c",
                f'make run ARGS="--port {self.port}"; echo "make answered $?"; cat {self._gate}',
            ],
            cwd=ROOT,
            env={**os.environ, "HEADRACE_URL": f"sqlite:///{folder}/jobs.db", "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        self.printed = read_all(self._ours)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def wait_until_served(self) -> None:
        give_up = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert self._process.poll() is None, self.printed
            assert time.monotonic() < give_up
            time.sleep(0.05)

    @property
    def make(self) -> int:
        [make] = children(self._process.pid)
        return make

    def end(self) -> str:
        """What was printed, after the shell was told to go on and the last process has left the terminal."""
        self._gate.write_text("")
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive()
        assert self._process.wait(PATIENCE) is not None
        return self.printed

    def close(self) -> None:
        if self._process.poll() is None:
            for child in [each for make in children(self._process.pid) for each in (*children(make), make)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        os.close(self._ours)


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def ended(process: int) -> bool:
    """Wait for the end of a process that is no child of ours."""
    file = os.pidfd_open(process)
    try:
        return bool(select.select([file], [], [], PATIENCE)[0])
    finally:
        os.close(file)


@pytest.fixture
def terminal(tmp_path: Path) -> Generator[Terminal]:
    shell = Terminal(tmp_path)
    yield shell
    shell.close()


@pytest.mark.timeout(300)  # on the slowest machine
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_demo_ends_when_make_is_killed(terminal: Terminal, how: signal.Signals) -> None:
    terminal.wait_until_served()
    make = terminal.make
    [demo] = children(make)
    os.kill(make, how)
    assert ended(demo)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", terminal.port))
    assert "done:" in terminal.end()


@pytest.mark.timeout(300)  # on the slowest machine
def test_ctrl_c_drains_the_demo_and_make_succeeds(terminal: Terminal) -> None:
    terminal.wait_until_served()
    terminal.type(b"\x1a")  # Ctrl-Z has no effect: make would wait for a stopped demo.
    terminal.type(b"\x03")
    printed = terminal.end()
    assert "done:" in printed
    assert "make answered 0" in printed
