"""The members of a run: each in a process of its own, or all in one loop where the store cannot be shared."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Protocol

import msgspec

from headrace.bench.fork_server import START, BenchFailed, Fork, ForkServer, last_line
from headrace.bench.load import Load
from headrace.bench.roles import RoleReport, Spec
from headrace.bench.workflow_roles import ROLES

_NO_LOG = logging.NullHandler()


class Member(Protocol):
    """One running role."""

    @property
    def settled(self) -> int:
        """Jobs settled so far."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        ...

    def last_words(self) -> str:
        """The last line of its errors."""
        ...

    async def until_ready(self) -> None: ...

    def go(self) -> None: ...

    def stop(self) -> None: ...

    async def report(self, within: float) -> RoleReport: ...

    async def end(self) -> None:
        """End the member. It has ended when this returns."""
        ...


class ProcessMember:
    """A role in a process of its own."""

    def __init__(self, spec: Spec, forks: ForkServer, fork: Fork, errors: IO[bytes]) -> None:
        self._count = 0
        self._spec = spec
        self._forks = forks
        self._fork = fork
        self._errors = errors
        self._is_ready = asyncio.Event()
        self._report: RoleReport | None = None
        self._reader = asyncio.create_task(self._read())

    @property
    def settled(self) -> int:
        return self._count

    @classmethod
    async def start(cls, spec: Spec, forks: ForkServer) -> ProcessMember:
        errors = tempfile.NamedTemporaryFile()  # noqa: SIM115 — closed by end()
        try:
            fork = await forks.start(errors.name)
        except BaseException:
            errors.close()
            raise
        member = cls(spec, forks, fork, errors)
        member._order(msgspec.json.encode(spec).decode())
        return member

    def _order(self, line: str) -> None:
        if not self._reader.done():
            self._fork.orders.write(line.encode() + b"\n")

    async def _read(self) -> None:
        async for line in self._fork.answers:
            word, _, rest = line.decode().strip().partition(" ")
            match word:
                case "ready":
                    self._is_ready.set()
                case "settled":
                    self._count = int(rest)
                case "report":
                    self._report = msgspec.json.decode(rest, type=RoleReport)
                case _:
                    pass  # A library printed this line.
        self._is_ready.set()

    async def until_ready(self) -> None:
        try:
            await asyncio.wait_for(self._is_ready.wait(), START)
        except TimeoutError:
            raise BenchFailed(f"the {self._spec.role} process was not ready within {START:.0f} s") from None
        if self._reader.done():
            raise self._failure()

    def go(self) -> None:
        self._order("go")

    def stop(self) -> None:
        self._order("stop")

    async def report(self, within: float) -> RoleReport:
        done, _ = await asyncio.wait([self._reader], timeout=within)
        if not done:
            raise BenchFailed(f"the {self._spec.role} process did not end within {within:.0f} s")
        if self._report is None:
            raise self._failure()
        return self._report

    @property
    def over(self) -> bool:
        return self._reader.done()

    def last_words(self) -> str:
        return last_line(self._errors)

    def _failure(self) -> BenchFailed:
        return BenchFailed(f"the {self._spec.role} process failed: {self.last_words()}")

    async def end(self) -> None:
        await self._forks.end(self._fork)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._errors.close()


class LocalLine:
    """The line between a run and a member in the same loop."""

    def __init__(self) -> None:
        self.count = 0
        self.is_ready = asyncio.Event()
        self.may_go = asyncio.Event()
        self.must_stop = asyncio.Event()

    async def ready(self) -> None:
        self.is_ready.set()
        await self.may_go.wait()

    async def stopped(self) -> None:
        await self.must_stop.wait()

    def settled(self, count: int) -> None:
        self.count = count


class LocalMember:
    """A role in this process, for a store that exists in one process only."""

    def __init__(self, spec: Spec, load: Load) -> None:
        self._spec = spec
        self._line = LocalLine()
        # Jobs that fail belong to a workload. A member in a process of its own keeps its log to itself, too.
        logging.getLogger("headrace").addHandler(_NO_LOG)
        self._task = asyncio.ensure_future(ROLES[spec.role](spec, load, self._line))

    @property
    def settled(self) -> int:
        return self._line.count

    @property
    def over(self) -> bool:
        return self._task.done()

    def last_words(self) -> str:
        return "it printed nothing"

    async def until_ready(self) -> None:
        waiter = asyncio.create_task(self._line.is_ready.wait())
        await asyncio.wait([waiter, self._task], timeout=START, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._task.done():
            await self._task
        if not self._line.is_ready.is_set():
            raise BenchFailed(f"the {self._spec.role} was not ready within {START:.0f} s")

    def go(self) -> None:
        self._line.may_go.set()

    def stop(self) -> None:
        self._line.must_stop.set()

    async def report(self, within: float) -> RoleReport:
        try:
            return await asyncio.wait_for(asyncio.shield(self._task), within)
        except TimeoutError:
            raise BenchFailed(f"the {self._spec.role} did not end within {within:.0f} s") from None

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Crew:
    """Starts members on one store, and ends them."""

    def __init__(self, engine: str, *, shared: bool, member: str) -> None:
        """`member`: the module that the processes run."""
        self.engine = engine
        self._forks = ForkServer(member, engine)
        self.shared = shared
        self._loads: dict[str, Load] = {}

    async def close(self) -> None:
        """End all processes of the run."""
        await self._forks.close()

    @asynccontextmanager
    async def members(self, specs: Sequence[Spec]) -> AsyncGenerator[list[Member]]:
        """Start members and wait until they are ready. They are ended in any case."""
        started: list[Member] = []
        try:
            for spec in specs:
                member = await self._start(spec)
                started.append(member)
            for member in started:
                await member.until_ready()
            yield started
        finally:
            for member in started:
                await member.end()

    async def _start(self, spec: Spec) -> Member:
        if self.shared:
            return await ProcessMember.start(spec, self._forks)
        load = self._loads.setdefault(spec.queue, Load(spec.url, spec.queue))
        return LocalMember(spec, load)

    async def all(self, specs: Sequence[Spec], *, within: float) -> list[RoleReport]:
        """Let members that end by themselves run at the same time."""
        async with self.members(specs) as members:
            for member in members:
                member.go()
            return [await member.report(within) for member in members]
