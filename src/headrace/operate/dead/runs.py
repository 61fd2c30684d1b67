"""A replay that a server runs: its state is a record of the store, so that it outlives the caller and the server.

A run moves from the newest dead letter to the oldest. It keeps the place that it has reached after every portion, so the
next server goes on from there. What a server did between the last record and its end is done again at most: a job that is
ready already is not dead, and stays as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.job import Job, JobId, JobState
from headrace.model.rate import Pacer
from headrace.model.records import Filter, Page
from headrace.operate.audit import Ledger, chosen
from headrace.operate.dead.letters import PAGE
from headrace.operate.dead.moves import DeadLetterOperations
from headrace.operate.shown import TaskSource, unknown
from headrace.policy import fingerprint
from headrace.policy.canary import Canary, Trial, count, too_many, verdict
from headrace.store.contract import Store

KIND: Final = "replay"
KEPT: Final = timedelta(days=7)
"""How long an ended run is kept."""
MOST_RUNNING: Final = 20
STEP: Final = 1.0
"""The most seconds between two looks at a run: at its canaries, and at its record."""

_DEAD = frozenset({JobState.DEAD})


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """One replay: what it moves, how, and how far it is."""

    id: str
    by: str
    """The operator that started it."""
    tenant: str | None = None
    queues: frozenset[str] | None = None
    """The bounds of the token that started it."""
    group: str | None = None
    where: Filter
    rate: float | None = None
    """Jobs per second. None: as fast as the store allows."""
    canary: int | None = None
    """How many jobs go first. None: none."""
    tolerate: float = 0.1
    patience: timedelta = timedelta(minutes=10)
    started_at: datetime
    ended_at: datetime | None = None
    stage: Literal["canary", "watch", "rest", "ended"]
    before: JobId | None = None
    """The last job that was looked at."""
    whole: bool = False
    """There is no older dead letter."""
    canaries: tuple[JobId, ...] = ()
    watched_since: datetime | None = None
    replayed: int = 0
    refused: int = 0
    """Jobs that were not dead any more."""
    late: int = 0
    """Jobs that stay dead because their `expires` or `deadline` has passed."""
    trial: Trial | None = None
    stopped: str | None = None
    """Why the rest stays dead. None: nothing was left, or the run goes on."""
    stop_by: str = ""
    """The operator that asked it to stop."""
    runner: str = ""
    """The server that runs it. Empty: none."""
    seen_at: datetime

    @property
    def what(self) -> str:
        """The selection, for the audit log."""
        return chosen((), replace(self.where, states=frozenset()), group=self.group)


Find = Callable[[ReplayRun, Filter, JobId | None, int], Awaitable[Page]]
"""Finds dead jobs that the operator of a run may see."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReplayRun)


class ReplayRuns:
    """The replays of one store, as records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> dict[str, tuple[ReplayRun, int]]:
        """Every run with the version of its record, the newest first."""
        records = await self._store.records(KIND)
        runs: list[tuple[ReplayRun, int]] = []
        for record in records.values():
            try:
                runs.append((_decoder.decode(record.value), record.version))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # It may be of a newer version.
        runs.sort(key=lambda pair: (pair[0].started_at, pair[0].id), reverse=True)
        return {run.id: (run, version) for run, version in runs}

    async def create(self, run: ReplayRun) -> int:
        """Write a new run, and forget old ones. Returns the version of its record."""
        running = 0
        for other, version in (await self.all()).values():
            if other.ended_at is None:
                running += 1
            elif other.ended_at < run.started_at - KEPT:
                await self._store.record(KIND, other.id, None, version)
        if running >= MOST_RUNNING:
            raise ConfigError(f"{running} replays are running: stop one, or wait for its end")
        written = await self.save(run, None)
        assert written is not None, "its id is random"
        return written

    async def save(self, run: ReplayRun, version: int | None) -> int | None:
        """Write a run. None: another caller has changed it, and nothing was written."""
        return await self._store.record(KIND, run.id, _encoder.encode(run), version)

    async def stop(self, id: str, by: str) -> ReplayRun | None:
        """Ask a run to stop. Its server stops it within a second or two. None: there is no such run."""
        while True:
            run, version = (await self.all()).get(id, (None, 0))
            if run is None or run.ended_at is not None or run.stop_by:
                return run
            asked = replace(run, stop_by=by)
            if await self.save(asked, version) is not None:
                return asked


def new_run_id() -> str:
    """A random name."""
    return secrets.token_hex(8)


class ReplaySteps(DeadLetterOperations):
    """The work of a run, in portions."""

    def __init__(
        self,
        store: Store,
        find: Find,
        sleep: Callable[[float], Awaitable[object]],
        task_of: TaskSource = unknown,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sleep` may return early. `clock` is for tests."""
        super().__init__(store, Ledger(None, ""), task_of, sleep=sleep, clock=clock)
        self._find = find

    async def steps(self, run: ReplayRun) -> AsyncIterator[ReplayRun]:
        """The run after each portion, and at least once a second while it waits. The last one has ended."""
        pacer = Pacer(run.rate, most=PAGE, sleep=self._sleep, clock=self._clock)
        while run.stage != "ended":
            if run.stage == "watch":
                run = await self._watched(run)
                yield run
                if run.stage == "watch":
                    await self._sleep(STEP)
                continue
            jobs, older = await self._page(run)
            late = await self._late(jobs)
            while jobs and not _is_watched(run):
                room = PAGE if run.canary is None or run.stage == "rest" else run.canary - len(run.canaries)
                portion = _portion(jobs, late, min(pacer.portion, room))
                jobs = jobs[len(portion) :]
                while (early := pacer.early()) > 0:
                    await self._sleep(min(early, STEP))
                    yield run
                run = await self._moved(run, portion, late, pacer)
                yield run
            if not _is_watched(run):
                run = await self._turned(run, older)
                yield run

    async def _page(self, run: ReplayRun) -> tuple[list[Job], JobId | None]:
        """Dead jobs of the run with their failures, and where the next page begins."""
        if run.whole:
            return [], None
        page = await self._find(run, replace(run.where, states=_DEAD), run.before, PAGE)
        stored = await self._store.get([job.id for job in page.jobs]) if page.jobs else []
        dead = [job for job in stored if job is not None and job.state is JobState.DEAD]
        return [job for job in dead if run.group is None or fingerprint.of_job(job).id == run.group], page.next

    async def _moved(self, run: ReplayRun, jobs: list[Job], late: dict[JobId, None], pacer: Pacer) -> ReplayRun:
        ids = [job.id for job in jobs if job.id not in late]
        moved = await self._store.retry(ids) if ids else set[JobId]()
        pacer.take(len(ids))
        run = replace(
            run,
            before=jobs[-1].id,
            replayed=run.replayed + len(moved),
            refused=run.refused + len(ids) - len(moved),
            late=run.late + len(jobs) - len(ids),
        )
        if run.stage == "canary":
            run = replace(run, canaries=(*run.canaries, *(id for id in ids if id in moved)))
            if run.canary is not None and len(run.canaries) >= run.canary:
                return await self._watching(run)
        return run

    async def _turned(self, run: ReplayRun, older: JobId | None) -> ReplayRun:
        """The page is done: the next one, the watch, or the end."""
        if older is not None:
            return replace(run, before=older)
        run = replace(run, whole=True)
        return await (self._watching(run) if run.stage == "canary" and run.canaries else self.ended(run))

    async def _watching(self, run: ReplayRun) -> ReplayRun:
        return replace(run, stage="watch", watched_since=await self._store.now())

    async def _watched(self, run: ReplayRun) -> ReplayRun:
        """A look at the canaries: they have not ended, the rest follows, or the rest stays dead."""
        rule = Canary(run.canary or 1, run.tolerate, run.patience)
        trial = count(await self._store.get(run.canaries))
        run = replace(run, trial=trial)
        since = run.watched_since or run.started_at
        if trial.waiting and not too_many(trial, rule) and await self._store.now() < since + run.patience:
            return run
        why = verdict(trial, rule)
        return await self.ended(run, why) if why or run.whole else replace(run, stage="rest")

    async def ended(self, run: ReplayRun, why: str | None = None) -> ReplayRun:
        """The run at its end."""
        return replace(run, stage="ended", ended_at=await self._store.now(), stopped=why)


def _is_watched(run: ReplayRun) -> bool:
    return run.stage == "watch"


def _portion(jobs: list[Job], late: dict[JobId, None], most: int) -> list[Job]:
    """The first jobs, with at most so many that are not too late."""
    portion: list[Job] = []
    for job in jobs:
        if job.id not in late and most == 0:
            break
        most -= job.id not in late
        portion.append(job)
    return portion
