"""Starts the members of a run. One process imports the modules once, and each member is a fork of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.errors import HeadraceError
from headrace.runtime import event_loop
from headrace.store import connect

START = 120.0
"""Seconds that a process may take until it answers. Only a run that fails waits so long."""
_LINE_LIMIT = 64 * 1024 * 1024


class BenchFailed(HeadraceError):
    """A run could not be measured."""

    code = "bench_failed"


def child_environment() -> dict[str, str]:
    """A child process finds the modules that this process finds, from whatever folder it was started."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(place or str(Path.cwd()) for place in sys.path)}


def last_line(errors: IO[bytes]) -> str:
    """The last line that a process wrote to its file of errors."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


@dataclass(frozen=True, slots=True)
class Fork:
    """A started member: its process, and the two directions of its connection to the run."""

    pid: int
    answers: asyncio.StreamReader
    orders: asyncio.StreamWriter


class ForkServer:
    """The run's side: the process that forks, and the socket that its forks connect to."""

    def __init__(self, module: str, engine: str) -> None:
        """`module`: the module that the process runs, which calls `fork_members`. `engine`: the store that members use."""
        self._command = (module, engine)
        self._closing = contextlib.AsyncExitStack()
        self._process: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] | None = None
        self._connected: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._turn = asyncio.Lock()
        """Members connect in the order in which they were asked for."""

    async def close(self) -> None:
        """End the process and the members that are left."""
        self._process = None
        await self._closing.aclose()

    async def start(self, errors: str) -> Fork:
        """Start a member, whose errors go to this file."""
        async with self._turn:
            pid = int(await self._ask(f"start {errors}"))
            try:
                answers, orders = await asyncio.wait_for(self._connected.get(), START)
            except TimeoutError:
                raise BenchFailed(f"a member did not connect within {START:.0f} s") from None
        return Fork(pid, answers, orders)

    async def end(self, fork: Fork) -> None:
        """End a member. It has ended when this returns."""
        async with self._turn:
            await self._ask(f"end {fork.pid}")
        fork.orders.close()

    async def _ask(self, order: str) -> str:
        process = self._process or await self._launch()
        assert process.stdin is not None  # It was started with pipes.
        assert process.stdout is not None
        process.stdin.write(f"{order}\n".encode())
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START)
        except TimeoutError:
            raise BenchFailed(f"the process that starts members did not answer within {START:.0f} s") from None
        if not line:
            assert self._errors is not None  # `_launch` has made it.
            raise BenchFailed(f"the process that starts members failed: {last_line(self._errors)}")
        return line.decode()

    async def _launch(self) -> asyncio.subprocess.Process:
        folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-"))
        self._errors = self._closing.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 — closed by close()
        address = str(Path(folder) / "members")

        async def connected(answers: asyncio.StreamReader, orders: asyncio.StreamWriter) -> None:
            await self._connected.put((answers, orders))

        listener = await asyncio.start_unix_server(connected, address, limit=_LINE_LIMIT)
        self._closing.callback(listener.close)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._command,
            address,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
        self._closing.push_async_callback(_finish, self._process)
        return self._process


async def _finish(process: asyncio.subprocess.Process) -> None:
    # The end of its input makes the process end its members, and then itself.
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), START)
    except TimeoutError:
        process.kill()
        await process.wait()


def fork_members(engine: str, address: str) -> bool:
    """The process's side: fork a member for each order. Returns True in a member, and False at the end of the run.

    A member has the connection to the run as its standard input and output.
    """
    event_loop.factory()
    # A store object that is never opened, for the import of its modules. The member says which driver is missing.
    with contextlib.suppress(HeadraceError):
        connect(f"{engine}://localhost/members")
    # A Ctrl-C at the terminal reaches the run, which then ends all members.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    members: set[int] = set()
    while order := sys.stdin.readline():
        word, _, rest = order.strip().partition(" ")
        if word == "start":
            if (pid := os.fork()) == 0:
                _connect(address, rest)
                return True
            members.add(pid)
            _answer(str(pid))
        else:
            _end(int(rest))
            members.discard(int(rest))
            _answer("ended")
    for pid in members:
        _end(pid)
    return False


def _connect(address: str, errors: str) -> None:
    with Path(errors).open("ab") as file:
        os.dup2(file.fileno(), 2)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        for number in (0, 1):
            os.dup2(connection.fileno(), number)
    # New objects, because those of the parent may hold orders that it has read and not taken yet.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 — for the life of the process
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
