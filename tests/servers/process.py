"""The process of a temporary server: starts it on a free loopback port, waits for it, ends it, removes its folder."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from headrace.errors import ConfigError, Unavailable

_PORTS: Final = range(10_000, 22_000)
"""Ports below those that systems assign to outgoing connections, so that a free port stays free."""
_CHANCE: Final = random.SystemRandom()
# Waits for the end of its input, then ends the server if the pid still belongs to it, and removes its data.
_WATCH: Final = """
cat >/dev/null
[ "$(cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null)" = "$2" ] && kill -"$3" "$1"
sleep 1
rm -rf "$4"
"""


class ServerProcess(ABC):
    """A temporary server: data and log are in a temporary folder, and nothing is shared."""

    product: ClassVar[str]
    start_timeout: ClassVar[float]
    stop_signal: ClassVar[signal.Signals]
    """The signal that ends the server when its data are not needed any more."""
    restart_signal: ClassVar[signal.Signals]
    """The signal that ends the server when its data are needed again."""
    crash_signal: ClassVar[signal.Signals]

    def __init__(self, prefix: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("HEADRACE_TEST_FOLDER") or None))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._starter = os.getpid()

    # ── what each kind of server defines ────────────────────────────────────

    @property
    @abstractmethod
    def _program(self) -> str:
        """The program, for messages."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """The command that makes it listen on `port`."""

    @abstractmethod
    def _answers(self, pid: int) -> bool:
        """Whether this process accepts connections."""

    def _user(self) -> str | None:
        """The user that it runs as. None: the user of the tests."""
        return None

    def _environment(self) -> dict[str, str] | None:
        return None

    def _folder(self) -> Path:
        """Where it runs."""
        return self._home

    def _free_port(self) -> int:
        return free_port()

    # ── for tests ───────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ConfigError(f"the {self.product} server is not running: call restart()")
        return self._process.pid

    @property
    def port(self) -> int:
        return self._port

    def stop(self) -> None:
        """End the server and remove its data. May be called twice; a forked child leaves its parent's server alone."""
        if os.getpid() != self._starter:
            return
        self._end(self.stop_signal)
        atexit.unregister(self.stop)
        shutil.rmtree(self._home, ignore_errors=True)

    def crash(self) -> None:
        """End it like a crash, without a flush. `restart` starts it again."""
        self._end(self.crash_signal)

    def restart(self) -> None:
        """Start it (or stop and start it) on the same port with the same data."""
        self._end(self.restart_signal)
        self._launch(port=self._port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ── how it runs ─────────────────────────────────────────────────────────

    def _started(self) -> Self:
        # A test run that ends without `stop` must not leave a server behind.
        atexit.register(self.stop)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self, port: int = 0) -> None:
        log = self._home / "log"
        # Another process may take the free port before the server does.
        for _ in range(5):
            self._port = port or self._free_port()
            with log.open("ab") as said:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=self._folder(),
                    user=self._user(),
                    env=self._environment(),
                    # A Ctrl-C at the terminal must reach the tests, not their server.
                    start_new_session=True,
                )
            self._watch(self._process.pid)
            if self._wait_ready(self._process):
                return
            self._end(self.crash_signal)
        raise Unavailable(f"{self._program} did not start: {log.read_text(errors='replace')[-2000:]}")

    def _watch(self, pid: int) -> None:
        """End the server when this process ends without `stop`, as a killed test run does: its pipe closes then."""
        try:
            started = (
                Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
            )
        except OSError:
            started = "unknown"  # It has ended already, or this is not Linux.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(pid), started, self.crash_signal.name.removeprefix("SIG"), self._home],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + self.start_timeout
        while time.monotonic() < deadline and process.poll() is None:
            if self._answers(process.pid):
                return True
            time.sleep(0.01)
        return False

    def _end(self, how: signal.Signals) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()
            watcher.wait()
            if watcher.stdin is not None:
                watcher.stdin.close()
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        # A frozen process gets no signal before it continues.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port(*, also: int = 0) -> int:
    """A free loopback port, which the system does not assign later. `also`: the port that far above it is free, too."""
    for _ in range(1000):
        port = _CHANCE.choice(_PORTS)
        if _is_free(port) and (not also or _is_free(port + also)):
            return port
    raise Unavailable(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
