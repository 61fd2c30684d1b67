"""Looks at the store: get, stats, ended, lanes, ahead, workers. None of them writes. `find.py` has find."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.errors import StoreError
from headrace.model.job import Job, JobId
from headrace.model.lane import MAX_LANES, Ahead, Blocked, LaneView
from headrace.model.lease import Presence
from headrace.model.records import Ending, QueueStats, Stats
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, chunks, pairs
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.faults import foreign
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.element import from_us, lane_of, to_us
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.records import paused_of
from headrace.store.redis.rows import ending_of, job_of
from headrace.store.redis.store_clock import StoreClock

_AT_ONCE: Final = 200
"""Jobs that one script looks at."""
_FORGOTTEN: Final = 500
"""Totals of dropped queues that one command reads."""
_COUNTED: Final = 10_000
"""Jobs of a lane that `lanes` counts to."""
_HOLDERS: Final = 5
"""Jobs that hold a limit and that `ahead` names."""
_SETS, _WORDS = 4, 3
"""The sets in which `ended.lua` finds jobs, and the words that it answers for each set, from which the next call continues."""
_STEP: Final = 250
"""Lanes that one script of a walk looks into, about 1 ms of the server's time."""
_BRIEF: Final = 10
"""Lanes that the first script of a walk looks into where many queues are asked: most have fewer."""
_TOGETHER: Final = 50
"""Scripts of a walk that one round trip sends. A server runs all that it has received before it answers other clients."""
_READ: Final = 1000
"""Elements of history that the scripts of one round trip of `ended` read together."""
_SEEN_WITHIN: Final = 60_000_000
"""Microseconds after its last heartbeat for which a worker is listed."""

_counters = msgspec.msgpack.Decoder(list[str])
_presence = msgspec.msgpack.Decoder(tuple[int, Presence])


class Looks:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList, locator: JobLocator) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._locator = time, queues, locator
        self._looked = 0
        """Where the next call of `lanes` begins."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        jobs_by_id: dict[UUID, Job] = {}

        async def look(queue: str, some: list[UUID]) -> Collection[UUID]:
            jobs = await self.look(queue, some, history=True)
            jobs_by_id.update(jobs)
            return jobs

        for some in chunks(list(dict.fromkeys(ids)), _AT_ONCE):
            await self._locator.ask(some, look)
        workers = {job.worker for job in jobs_by_id.values() if job.worker is not None}
        names = {worker: await self._name(worker) for worker in workers}
        return [
            job and replace(job, worker_name=None if job.worker is None else names[job.worker])
            for job in (jobs_by_id.get(id) for id in ids)
        ]

    async def _name(self, worker: UUID) -> str | None:
        key = self._keys.name(worker)
        try:
            name: bytes | None = await self._wire.command(key, "GET", key)
        except StoreError:
            return None  # on a cluster, the node of the name may be down while others answer
        return None if name is None else name.decode(errors="replace")

    async def look(self, queue: str, ids: Sequence[UUID], *, history: bool) -> dict[UUID, Job]:
        answers: list[Reply] = []
        while len(answers) < len(ids):  # a script answers fewer jobs if they are large
            answers += await self._client.run(
                scripts.GET, queue, int(history), *(id.bytes for id in ids[len(answers) :])
            )
        now = await self._time.now_us()
        return {id: job_of(answer, queue, now) for id, answer in zip(ids, answers, strict=True) if answer}

    async def stats(self) -> Stats:
        """One script answers for many queues. Only queues in which jobs wait are asked one by one, for the oldest job."""
        now = await self._time.now_us()
        listed = await self._queues.names()
        figures = (await self._client.survey(listed, "figures")).answers
        stats_by_queue = {queue: _stats(queue, answer, now) for queue, answer in figures.items()}
        waiting = [queue for queue, stats in stats_by_queue.items() if stats.ready > 0]
        for queue, (oldest, at_least) in (await self._oldest(waiting)).items():
            age = None if oldest is None else timedelta(microseconds=max(0, now - oldest))
            stats_by_queue[queue] = replace(stats_by_queue[queue], oldest_ready=age, oldest_at_least=at_least)
        for stats in await self._forgotten():
            here = stats_by_queue.get(stats.queue)
            if here is not None and not here.enqueued_total:
                stats_by_queue[stats.queue] = replace(stats, paused=here.paused)
            elif here is None and stats.queue not in listed:
                stats_by_queue[stats.queue] = stats
        ordered = [stats for _, stats in sorted(stats_by_queue.items())]
        return Stats([stats for stats in ordered if stats.enqueued_total or stats.paused])

    async def _oldest(self, queues: Sequence[str]) -> dict[str, tuple[int | None, bool]]:
        """By queue: when its longest waiting job was enqueued, and whether there may be older ones."""
        oldest_by_queue: dict[str, tuple[int | None, bool]] = {}
        lanes = dict.fromkeys(queues, 0)
        left = dict.fromkeys(queues, b"")
        while left:
            some, most = _next_step(left)
            calls = {queue: (min(most, MAX_LANES - lanes[queue]), left[queue]) for queue in some}
            answers = await self._client.ask_by(scripts.STATS, calls)
            for queue in some:
                del left[queue]
                if (answer := answers.get(queue)) is None:
                    continue
                goes_on, looked, when, unsure = answer
                lanes[queue] += looked
                oldest, at_least = oldest_by_queue.get(queue, (None, False))
                if when:
                    oldest = int(when) if oldest is None else min(oldest, int(when))
                ends = bool(goes_on) and lanes[queue] >= MAX_LANES
                oldest_by_queue[queue] = oldest, at_least or bool(unsure) or ends
                if goes_on and not ends:
                    left[queue] = goes_on
        return oldest_by_queue

    async def _forgotten(self) -> list[QueueStats]:
        """The totals of queues that were dropped because they had no jobs."""
        key = self._keys.home[0] + "#s"
        kept: dict[bytes, bytes] = {}
        cursor = b"0"
        try:
            while True:
                cursor, some = await self._wire.command(key, "HSCAN", key, cursor, "COUNT", _FORGOTTEN)
                kept.update(pairs(some))
                if int(cursor) == 0:
                    break
        except ONE_NODE:
            if not self._keys.clustered:
                raise
        totals: list[QueueStats] = []
        for name, raw in kept.items():
            words = _counters.decode(raw)
            counted = {counter: int(count) for counter, count in pairs(words)}
            totals.append(
                QueueStats(
                    queue=name.decode(),
                    done_total=counted.get("o", 0),
                    failed_total=counted.get("f", 0),
                    enqueued_total=counted.get("e", 0),
                )
            )
        return totals

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        endings: list[Ending] = []
        queues, silent = await self._client.survey(await self._queues.names(), "past", to_us(since))
        if silent is not None:
            raise silent
        left: dict[str, list[Any]] = {queue: [to_us(since), 0, 0] * _SETS for queue in queues}
        while left:
            share = min(limit, max(20, 2 * limit // len(left)))
            effort = max(_READ // _TOGETHER, _READ // len(left))
            for some in chunks(list(left), _TOGETHER):
                calls = [(self._keys.of(queue), (share, effort, *left[queue])) for queue in some]
                answers = await self._wire.run_many(scripts.ENDED, calls)
                for queue, answer in zip(some, answers, strict=True):
                    left[queue][:] = answer[: _WORDS * _SETS]
                    endings += [ending_of(one, queue) for one in answer[_WORDS * _SETS :]]
            endings = sorted(endings, key=lambda ending: (ending.at, ending.id))[:limit]
            # A set is complete up to the place from which it continues. Jobs behind the last wanted one need not be read.
            last = to_us(endings[-1].at) if len(endings) == limit else None
            left = {queue: words for queue, words in left.items() if _goes_on(words, last)}
        return endings

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        names = list(dict.fromkeys(queues))
        limit = min(limit, MAX_LANES)
        self._looked += limit
        views_by_queue: dict[str, dict[bytes, LaneView]] = {queue: {} for queue in names}
        looks = dict.fromkeys(names, 2 * limit + 50)
        left = dict.fromkeys(names, b"") if limit > 0 else {}
        while left:
            some, most = _next_step(left)
            words = (limit, self._looked, _COUNTED)
            calls = {queue: (min(most, limit - len(views_by_queue[queue])), left[queue], *words) for queue in some}
            answers = await self._client.ask_by(scripts.LANES, calls)
            for queue in some:
                del left[queue]
                if (answer := answers.get(queue)) is None:
                    continue
                goes_on, looked, *fields = answer
                looks[queue] -= looked
                for lane, jobs, oldest in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
                    views_by_queue[queue][lane] = _lane_view(lane.decode(), queue, jobs, int(oldest))
                if goes_on and len(views_by_queue[queue]) < limit and looks[queue] > 0:
                    left[queue] = goes_on
        return [view for views in views_by_queue.values() for view in _whole_lanes(views.values())]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        answers: list[tuple[str, Reply]] = []

        async def ask(queue: str, some: list[UUID]) -> Collection[UUID]:
            answer: Reply = await self._client.run(scripts.AHEAD, queue, self._time.given, id.bytes, limit)
            if answer:
                answers.append((queue, answer))
            return some if answer else ()

        await self._locator.ask([id], ask)
        return await self._ahead(*answers[0], limit) if answers else None

    async def _ahead(self, queue: str, answer: Reply, limit: int) -> Ahead:
        lane, higher, suspect, here, tenant, *blocked = answer
        paused, tenant_paused = paused_of(here), paused_of(tenant)
        return Ahead(
            lane=lane,
            higher=higher,
            limit=limit,
            suspect=bool(suspect),
            paused_by=paused.by,
            paused_since=paused.since,
            paused_until=paused.until,
            tenant_paused_by=tenant_paused.by,
            tenant_paused_since=tenant_paused.since,
            tenant_paused_until=tenant_paused.until,
            blocked=tuple([await self._blocked(queue, *blocked[at : at + 5]) for at in range(0, len(blocked), 5)]),
        )

    async def _blocked(
        self, queue: str, key: bytes, concurrency: bytes, held: bytes, opens: bytes, never: bytes
    ) -> Blocked:
        by: list[UUID] = []
        if int(concurrency) >= 0:
            # On one server, jobs in any queue may hold the units.
            queues = [queue] if self._keys.clustered else await self._running()
            for some in chunks(queues, _AT_ONCE):
                holders = await self._client.run_each(scripts.HOLDERS, some, key, _HOLDERS)
                by = [*by, *(UUID(bytes=id) for ids in holders for id in ids)][:_HOLDERS]
                if len(by) == _HOLDERS:
                    break
        return Blocked(
            key=key.decode(),
            concurrency=int(concurrency) if int(concurrency) >= 0 else None,
            held=int(held),
            by=tuple(by),
            opens_at=from_us(int(opens)) if int(opens) >= 0 else None,
            never=never == b"1",
        )

    async def _running(self) -> list[str]:
        """Queues that have leases."""
        return list((await self._client.survey(await self._queues.names(), "running")).answers)

    async def workers(self) -> list[Presence]:
        records: Reply = await self._wire.command(self._keys.workers, "HVALS", self._keys.workers)
        now = await self._time.now_us()
        try:
            presences = [_presence.decode(record) for record in records]
        except msgspec.DecodeError as error:
            raise foreign(self._keys.workers) from error
        return [
            replace(presence, upkeep=None, seen_at=from_us(at)) for at, presence in presences if at > now - _SEEN_WITHIN
        ]


def _next_step(left: Mapping[str, bytes]) -> tuple[list[str], int]:
    """Of walks over the lanes of queues: which queues are asked next, and how many lanes each looks into."""
    new = [queue for queue, at in left.items() if not at]
    if len(new) > _STEP // _BRIEF:
        return new[:_TOGETHER], _BRIEF
    return list(left)[:2], _STEP


def _goes_on(words: list[Any], last: int | None) -> bool:
    """Whether a queue may have jobs that ended by `last`; its sets that have none are skipped from here on."""
    for at in range(0, len(words), _WORDS):
        if last is not None and words[at] != b"" and float(words[at]) > last:
            words[at] = b""
    return any(words[at] != b"" for at in range(0, len(words), _WORDS))


def _whole_lanes(views: Iterable[LaneView]) -> list[LaneView]:
    """Jobs that waited together have a lane of their own in the store, which is a part of the lane that readers know."""
    lanes: dict[tuple[int, str, int], LaneView] = {}
    for view in views:
        key = view.priority, view.tenant, view.id
        if (other := lanes.get(key)) is None:
            lanes[key] = view
        else:
            jobs = min(view.jobs + other.jobs, _COUNTED)
            lanes[key] = replace(view, jobs=jobs, oldest=min(view.oldest, other.oldest))
    return list(lanes.values())


def _lane_view(name: str, queue: str, jobs: int, oldest: int) -> LaneView:
    lane = lane_of(name, queue)
    return LaneView(
        queue=queue,
        priority=lane.priority,
        tenant=lane.tenant,
        id=lane.id,
        jobs=jobs,
        oldest=from_us(oldest),
    )


def _stats(queue: str, answer: Reply, now: int) -> QueueStats:
    ready, running, done, failed, enqueued, scheduled, dead, pause, blocked = answer
    paused = paused_of(pause)
    return QueueStats(
        queue=queue,
        ready=int(ready),
        scheduled=int(scheduled),
        running=int(running),
        blocked=int(blocked),
        dead=int(dead),
        done_total=int(done),
        failed_total=int(failed),
        enqueued_total=int(enqueued),
        paused=paused.by is not None and (paused.until is None or to_us(paused.until) > now),
    )
