"""What all stores compute from a batch."""

from __future__ import annotations

from datetime import timedelta

from headrace.model.gate import Needs, Wait
from headrace.model.job import Batch, BatchId, Due, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.batches import chains

LANE = Lane(queue="work")
OTHER = Lane(queue="other")


def test_jobs_that_each_wait_for_the_one_before_are_one_chain() -> None:
    batch = new_batch()
    assert chains(_batch(batch, _job(), *(_after(batch, place) for place in range(4)))) == [(1, 4)]


def test_several_chains_of_one_batch_are_apart() -> None:
    batch = new_batch()
    jobs = [_job(), _after(batch, 0), _after(batch, 1), _job(), _after(batch, 3), _after(batch, 4)]
    assert chains(_batch(batch, *jobs)) == [(1, 2), (4, 5)]


def test_a_chain_ends_where_the_lane_the_need_or_the_due_time_is_another() -> None:
    batch = new_batch()
    jobs = [
        _job(),
        _after(batch, 0),
        _after(batch, 1, lane=OTHER),
        _after(batch, 2, lane=OTHER),
        _after(batch, 3, needs=Needs.ENDED, lane=OTHER),
        _after(batch, 4, due=timedelta(seconds=1), lane=OTHER),
        _after(batch, 5, lane=OTHER),
    ]
    assert chains(_batch(batch, *jobs)) == [(1, 1), (2, 3), (6, 6)]


def test_what_waits_for_another_job_than_the_one_before_is_in_no_chain() -> None:
    batch = new_batch()
    assert chains(_batch(batch, _job(), _job(), _after(batch, 0), _after(new_batch(), 2))) == []


def test_a_place_that_is_not_stored_cuts_a_chain() -> None:
    batch = new_batch()
    jobs = [_job(), *(_after(batch, place) for place in range(5))]
    assert chains(_batch(batch, *jobs), {2: job_id(new_batch(), 0)}) == [(1, 1), (4, 5)]


def _batch(id: BatchId, *jobs: NewJob) -> Batch:
    return Batch(id, list(jobs))


def _job() -> NewJob:
    return NewJob("task", b"", LANE)


def _after(batch: BatchId, place: int, *, needs: Needs = Needs.DONE, due: Due = None, lane: Lane = LANE) -> NewJob:
    return NewJob("task", b"", lane, due, wait=Wait(job_id(batch, place), needs))
