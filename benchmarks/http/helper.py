"""A process of a run over HTTP: the run sends a document to its stdin and reads one from its stdout."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import IO, TypeVar

import msgspec

from headrace.bench.fork_server import BenchFailed, child_environment

T = TypeVar("T")


class Helper:
    """A server or the load client."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._name = name
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    @asynccontextmanager
    async def start(cls, name: str) -> AsyncGenerator[Helper]:
        """`name`: its module in this package. The process is ended in any case."""
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"benchmarks.http.{name}",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_environment(),
                limit=64 * 1024 * 1024,
            )
            try:
                yield cls(name, process, errors)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def ask(self, order: object, answer: type[T], *, within: float) -> T:
        """One order and its answer."""
        assert self._process.stdin is not None  # It was started with pipes.
        assert self._process.stdout is not None
        if self._process.returncode is None:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), within)
        except TimeoutError:
            raise BenchFailed(f"the {self._name} process did not answer within {within:.0f} s") from None
        if not line:
            raise BenchFailed(f"the {self._name} process failed: {self.last_words()}")
        return msgspec.json.decode(line, type=answer)

    def last_words(self) -> str:
        """The last line of its errors."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
