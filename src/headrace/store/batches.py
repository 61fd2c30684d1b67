"""What every store computes from a batch before it stores it: runs of jobs, and places that share a unique lock."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from headrace.model.gate import Needs
from headrace.model.job import Batch


def stand_ins(batch: Batch, skip: Mapping[int, UUID] | frozenset[int] = frozenset()) -> dict[int, int]:
    """Places whose unique lock another place of the batch takes → that place: the first, or the last if it replaces.

    `skip`: places with an existing job by their key.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, job in enumerate(batch.jobs):
        if job.unique is not None and place not in skip:
            places.setdefault((job.task, job.unique.name), []).append(place)
    answer: dict[int, int] = {}
    for same in places.values():
        last = batch.jobs[same[-1]].unique
        chosen = same[-1] if last is not None and last.replace else same[0]
        answer.update({place: chosen for place in same if place != chosen})
    return answer


def segments(batch: Batch, skip: Mapping[int, UUID] | frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """The batch as runs (lo, hi) of jobs with the same lane, due time and wait, leaving out the places in `skip`."""
    runs: list[tuple[int, int]] = []
    jobs = batch.jobs
    start = -1
    lane = due = wait = None
    for place, job in enumerate(jobs):
        if place in skip:
            if start >= 0:
                runs.append((start, place - 1))
            start = -1
            continue
        if start >= 0:
            # Jobs of a run mostly share these objects.
            if (
                (job.lane is lane or job.lane == lane)
                and (job.due is due or job.due == due)
                and (job.wait is wait or job.wait == wait)
            ):
                continue
            runs.append((start, place - 1))
        start, lane, due, wait = place, job.lane, job.due, job.wait
    if start >= 0:
        runs.append((start, len(jobs) - 1))
    return runs


def chains(batch: Batch, skip: Mapping[int, UUID] | frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """The runs (lo, hi) of jobs of one lane of which each is released when the job at the place before it is done.

    The first of a run waits for the job at `lo - 1`, which may be in another lane, and which is not a part of the run. `skip`: places
    that are not stored. What waits for one of these waits for a job of another batch, so it begins no run and is in none.
    """
    runs: list[tuple[int, int]] = []
    base = batch.id.int
    start = -1
    lane = None
    for place, job in enumerate(batch.jobs):
        wait = job.wait
        follows = (
            wait is not None
            and place > 0
            and wait.gate.int ^ base == place - 1
            and wait.needs is Needs.DONE
            and job.due is None
            and place not in skip
            and place - 1 not in skip
        )
        if start >= 0:
            if follows and (job.lane is lane or job.lane == lane):
                continue
            runs.append((start, place - 1))
            start = -1
        if follows:
            start, lane = place, job.lane
    if start >= 0:
        runs.append((start, len(batch.jobs) - 1))
    return runs
