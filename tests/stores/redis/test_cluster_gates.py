"""Gates on a cluster: every case of the contract, with gates, members and jobs that wait in queues of different slots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from conformance import test_gates as cases
from conformance import test_large_runs as runs
from conformance import test_workflow_prune as retention
from headrace.model.clock import Clock
from headrace.model.gate import Gate, GateId, NewGate
from headrace.model.job import Batch, NewJob
from headrace.model.lease import Ask, Lease, Token
from headrace.model.outcome import Again, Settlement
from headrace.model.records import Enqueued, QueueStats, Stats
from headrace.store.redis.sharded import ShardedRedisStore
from headrace.store.redis.store import RedisStore
from headrace.testing.clock import FakeClock
from servers.redis import RedisCluster

OTHERS = ("gates", "waits", "second")
"""Queues in other slots than `default`, where the stores of these tests put what the cases put there."""

Spread = Literal["together", "gates apart", "waiting jobs apart", "members apart", "all apart", "shards"]


class SpreadStore(RedisStore):
    """Puts gates, jobs that wait, or every second job of a call into other queues, and shows them as if they were in `default`."""

    def __init__(self, url: str, spread: Spread, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        self._spread = spread
        self._plain_enqueue, self._plain_settle, self._plain_signal = self.enqueue, self.settle, self.signal
        self._plain_claim, self._plain_stats, self._plain_gates = self.claim, self.stats, self.gates
        self.enqueue = self._enqueue
        self.settle = self._settle
        self.signal = self._signal
        self.claim = self._claim
        self.stats = self._stats
        self.gates = self._gates

    def _gate(self, gate: NewGate) -> NewGate:
        apart = self._spread in {"gates apart", "all apart"}
        return replace(gate, queue="gates") if apart else gate

    def _job(self, ord: int, job: NewJob) -> NewJob:
        if job.wait is not None and self._spread in {"waiting jobs apart", "all apart"}:
            return replace(job, lane=replace(job.lane, queue="waits"))
        if ord % 2 and self._spread in {"members apart", "all apart"}:
            return replace(job, lane=replace(job.lane, queue="second"))
        return job

    async def _enqueue(self, batch: Batch) -> Enqueued:
        jobs = [self._job(ord, job) for ord, job in enumerate(batch.jobs)]
        return await self._plain_enqueue(replace(batch, jobs=jobs, gates=tuple(map(self._gate, batch.gates))))

    async def _settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        moved = [
            (at, replace(each, gates=tuple(map(self._gate, each.gates))) if isinstance(each, Again) else each)
            for at, each in settlements
        ]
        return await self._plain_settle(token, moved)

    async def _signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        return await self._plain_signal(self._gate(gate), value, keep)

    async def _claim(self, ask: Ask) -> Lease | None:
        return await self._plain_claim(replace(ask, queues=(*ask.queues, *OTHERS)))

    async def _gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return [gate and replace(gate, queue="default") for gate in await self._plain_gates(ids)]

    async def _stats(self) -> Stats:
        queues = (await self._plain_stats()).queues
        names = ("ready", "scheduled", "running", "blocked", "dead")
        sums: dict[str, Any] = {name: sum(getattr(each, name) for each in queues) for name in names}
        return Stats([QueueStats(queue="default", **sums)])


@pytest.fixture
async def store(
    cluster: RedisCluster, clock: FakeClock, request: pytest.FixtureRequest
) -> AsyncIterator[RedisStore | ShardedRedisStore]:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    store: RedisStore | ShardedRedisStore
    if request.param == "shards":
        store = ShardedRedisStore(cluster.url(), clock=clock, shards={"default": 4})
    else:
        store = SpreadStore(cluster.url(), request.param, clock)
    await store.open()
    yield store
    await store.close()


IN_ORDER = {
    "test_a_suspended_job_takes_its_old_place",
    "test_a_gate_counts_how_its_members_end",
    "test_a_job_may_count_on_several_gates_and_be_waited_for",
    "test_a_gate_is_a_member_of_another_gate",
    "test_a_lease_of_many_members_counts_at_once",
    "test_cancel_reaches_a_suspended_job_and_one_that_is_about_to_suspend",
    "test_a_job_that_met_a_key_is_no_member_and_what_waits_for_it_waits_for_the_first",
    "test_what_hangs_together_is_listed_in_pages",
}
"""Cases in which jobs of one call, or with one key, are in one queue: the order of jobs and keys hold within a queue."""
IN_ONE_QUEUE = {
    name
    for name in vars(runs)
    if name.startswith("test_")
    and name
    not in {
        "test_what_the_end_of_a_job_means_to_a_run",
        "test_runs_of_several_calls_wait_for_one_gate",
        "test_a_run_that_waits_for_an_open_gate_is_ready",
        "test_a_gate_that_is_not_over_any_more_blocks_the_next_run",
        "test_a_call_with_a_run_that_is_repeated_changes_nothing",
        "test_jobs_of_a_run_are_found_listed_cancelled_and_deleted",
        "test_a_run_that_is_cancelled_whole_waits_no_more",
        "test_a_run_that_can_never_run_is_cancelled_with_all_that_waits_for_its_jobs",
        "test_a_run_whose_group_is_given_up_is_cancelled",
    }
}
"""Cases of large runs about what a reader sees of a queue, or about the order in it."""
SPREADS: dict[Spread, set[str]] = {
    "together": {"test_the_oldest_ready_job_is_none_that_waits"},
    "gates apart": {"test_the_oldest_ready_job_is_none_that_waits"},
    "waiting jobs apart": IN_ONE_QUEUE,
    "members apart": IN_ORDER | IN_ONE_QUEUE,
    "all apart": IN_ORDER | IN_ONE_QUEUE,
    "shards": {
        *IN_ONE_QUEUE,
        "test_a_suspended_job_takes_its_old_place",
        "test_a_job_that_met_a_key_is_no_member_and_what_waits_for_it_waits_for_the_first",
    },
}

for module in (cases, runs, retention):
    found = {name: case for name, case in vars(module).items() if name.startswith("test_")}
    globals().update({name: found[name] for name in found if any(name not in without for without in SPREADS.values())})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        spreads = [spread for spread, without in SPREADS.items() if metafunc.function.__name__ not in without]
        metafunc.parametrize("store", spreads, indirect=True)
