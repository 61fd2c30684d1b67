"""The results of a group, as a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import msgspec

from headrace.errors import ResultError
from headrace.model.job import Job, JobState
from headrace.task.call import JobCall
from headrace.task.codec import Signature
from headrace.task.handle import outcome

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class DoneResult(msgspec.Struct, frozen=True):
    """The encoded result of a job that is done, without the job."""

    result: bytes | None
    state: JobState = JobState.DONE


class Results(Sequence[R_co]):
    """The results of a group in the order of its jobs. Reading that of a job that is not done raises, as its handle does."""

    def __init__(self, jobs: Sequence[tuple[Job | DoneResult, Signature]]) -> None:
        self._jobs = jobs

    def done(self) -> list[R_co]:
        """The results of the jobs that are done."""
        return [_result(job, codec) for job, codec in self._jobs if job.state is JobState.DONE]

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> R_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[R_co]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [_result(job, codec) for job, codec in self._jobs[index]]
        return _result(*self._jobs[index])

    def __iter__(self) -> Iterator[R_co]:
        return (_result(job, codec) for job, codec in self._jobs)

    def __repr__(self) -> str:
        return f"<results of {len(self):,} jobs>"


def done_results(calls: Sequence[JobCall[R]], results: Sequence[bytes | None]) -> Results[R]:
    """The results of calls whose jobs are done."""
    return Results[R]([(DoneResult(result), call.codec) for call, result in zip(calls, results, strict=True)])


def _result(job: Job | DoneResult, codec: Signature) -> Any:
    if isinstance(job, DoneResult):
        return codec.decode_result(job.result)
    if not job.state.finished:
        raise ResultError(f"job {job.id} of {job.task} has not ended: it is {job.state}")
    return outcome(job, codec)
