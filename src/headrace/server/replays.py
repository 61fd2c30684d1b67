"""Runs replays of dead letters in the background. Servers of one store share them, and take over from each other."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headrace.errors import StoreError
from headrace.model.job import JobId
from headrace.model.records import Filter, Page
from headrace.operate.audit import Ledger
from headrace.operate.dead.runs import ReplayRun, ReplayRuns, ReplaySteps
from headrace.server import visibility
from headrace.server.auth import Principal

if TYPE_CHECKING:
    from headrace.server.state import ServerState

log = logging.getLogger("headrace.server")

LOOK: Final = 10.0
"""Seconds between two looks for runs without a server."""
STALE: Final = timedelta(seconds=30)
"""The age of a run's record from which its server counts as gone."""


class ReplayRunner:
    """The replays that this server runs."""

    def __init__(self, service: ServerState, *, look: float = LOOK, stale: timedelta = STALE) -> None:
        """`look` and `stale` are for tests."""
        self._service = service
        self._look = look
        self._stale = stale
        self._me = secrets.token_hex(8)
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self.runs = ReplayRuns(service.store)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Look for runs, and run them. At the end other servers, or the next one, go on with them."""
        looking = asyncio.create_task(self._keep_looking(), name="headrace-replays")
        try:
            yield
        finally:
            driving = list(self._driving.values())
            for task in (looking, *driving):
                task.cancel()
            await asyncio.wait((looking, *driving))
            if driving:
                with suppress(StoreError):
                    await self._release()

    async def start(self, run: ReplayRun) -> ReplayRun:
        """Write a new run and begin with it."""
        run = replace(run, runner=self._me)
        self._drive(run, await self.runs.create(run))
        return run

    async def stop(self, id: str, by: str) -> ReplayRun | None:
        """Ask a run to stop, wherever it runs. None: there is no such run."""
        run = await self.runs.stop(id, by)
        self._wake.set()
        return run

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._take_over()
            except StoreError as error:
                log.debug("replays are not looked at: %s", error)
            except Exception:
                log.exception("replays are not looked at")
            await asyncio.sleep(self._look)

    async def _take_over(self) -> None:
        """Go on with runs that have no server, or whose server is gone."""
        runs = await self.runs.all()
        if all(run.ended_at is not None for run, _ in runs.values()):
            return
        now = await self._service.store.now()
        for run, version in runs.values():
            free = run.runner in {"", self._me} or now - run.seen_at > self._stale
            if run.ended_at is None and free and run.id not in self._driving:
                mine = replace(run, runner=self._me, seen_at=now)
                if (taken := await self.runs.save(mine, version)) is not None:
                    self._drive(mine, taken)

    async def _release(self) -> None:
        for run, version in (await self.runs.all()).values():
            if run.runner == self._me and run.ended_at is None:
                await self.runs.save(replace(run, runner=""), version)

    def _drive(self, run: ReplayRun, version: int) -> None:
        task = asyncio.create_task(self._run(run, version), name=f"headrace-replay-{run.id}")
        self._driving[run.id] = task
        task.add_done_callback(lambda _: self._driving.pop(run.id, None))

    async def _run(self, run: ReplayRun, version: int) -> None:
        service = self._service
        worker = ReplaySteps(service.store, self._find, self._sleep, service.app.tasks.get)
        kept: ReplayRun | None = run
        try:
            steps = worker.steps(run)
            while kept is not None and kept.ended_at is None:
                run = await (worker.ended(kept, f"{kept.stop_by} stopped it") if kept.stop_by else anext(steps))
                kept, version = await self._keep(run, version)
        except StoreError as error:
            log.warning("replay %s waits for the store: %s", run.id, error)  # The next look goes on with it.
            return
        except Exception:
            log.exception("replay %s failed", run.id)
            kept, version = await self._keep(await worker.ended(run, "an unexpected error: see the log"), version)
        if kept is not None and kept.ended_at is not None:
            await Ledger.of(service.store, audit=service.audit, actor=kept.by).note(
                "dead.replay", kept.what, kept.replayed
            )

    async def _keep(self, run: ReplayRun, version: int) -> tuple[ReplayRun | None, int]:
        """Write how far the run is. It may have been asked to stop meanwhile. None: another server has it."""
        run = replace(run, seen_at=await self._service.store.now())
        while (written := await self.runs.save(run, version)) is None:
            stored, version = (await self.runs.all()).get(run.id, (None, 0))
            if stored is None or stored.runner != self._me or stored.ended_at is not None:
                return None, 0
            run = replace(run, stop_by=stored.stop_by)
        return run, written

    async def _find(self, run: ReplayRun, where: Filter, before: JobId | None, limit: int) -> Page:
        who = Principal(run.by, frozenset(), run.queues, run.tenant)
        return await visibility.find(self._service, who, where, before=before, limit=limit)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or return early when a run is asked to stop here."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
