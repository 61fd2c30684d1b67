"""INPUTS: results of other jobs that are arguments. They are read before an attempt gets a slot, once for each lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from headrace.client.members import PAGE, members
from headrace.errors import (
    BadArguments,
    ConfigError,
    OutcomeUnknown,
    ResultExpired,
    SerializationError,
    Unavailable,
)
from headrace.model.gate import GateId, is_gate
from headrace.model.job import REFERENCE, Claimed, Failure, Job, JobId, JobState
from headrace.model.outcome import Failed, Outcome, Released, Snoozed
from headrace.store.contract import Store
from headrace.task.codec import decode_options
from headrace.task.codec.references import array, resolved
from headrace.task.large_results import LargeResults, fetched
from headrace.worker import outcome_of
from headrace.worker.attempt import Attempt
from headrace.worker.service import Backoff, log

MISSING: Final = "input_missing"
PATIENCE: Final = 10.0
"""Seconds after which jobs are handed back whose inputs cannot be read."""
SOON: Final = timedelta(seconds=5)
"""How long a job is put off whose input is not done any more, because a person retries that job."""

Start = Callable[[list[Attempt]], None]


def has_inputs(job: Claimed) -> bool:
    """Whether the job may have inputs. Its options are decoded only if they name the field."""
    return job.options is not None and b"inputs" in job.options


class _NoInputError(Exception):
    """An input that cannot be given; `args[0]` says why."""


class _NotYetError(Exception):
    """An input that runs again."""


class InputReader:
    """Reads the inputs of attempts, and puts them into their arguments."""

    def __init__(
        self, store: Store, large_results: LargeResults | None, worker: str, *, most: int | None = None
    ) -> None:
        """`most`: the bytes of the results of one group, at most. None: any number."""
        self._store = store
        self._large_results = large_results
        self._worker = worker
        self._most = most

    async def fill(self, attempts: Sequence[Attempt]) -> list[tuple[Attempt, Outcome | None]]:
        """Each attempt with its arguments complete, or with the outcome of a job that cannot start."""
        filled: list[tuple[Attempt, Outcome | None]] = []
        for attempt, job in zip(attempts, await self.complete([attempt.job for attempt in attempts]), strict=True):
            if isinstance(job, Claimed):
                attempt.job = job
                filled.append((attempt, None))
            else:
                filled.append((attempt, job))
        return filled

    async def complete(self, jobs: Sequence[Claimed]) -> list[Claimed | Outcome]:
        """Each job with its arguments complete, or the outcome of one that cannot start."""
        inputs: list[tuple[UUID, ...]] = []
        for job in jobs:
            try:
                inputs.append(decode_options(job.options).inputs)
            except BadArguments:
                inputs.append(())  # The slot that decodes the arguments makes the job dead.
        results = await self._read({id for ids in inputs for id in ids})
        return [self._completed(job, ids, results) for job, ids in zip(jobs, inputs, strict=True)]

    def _completed(
        self, job: Claimed, ids: tuple[UUID, ...], results: dict[UUID, bytes | Exception | None]
    ) -> Claimed | Outcome:
        results_by_id: dict[UUID, bytes | None] = {}
        for id in ids:
            match results[id]:
                case _NotYetError() as not_yet:
                    return Snoozed(SOON, note=str(not_yet))
                case Exception() as missing:
                    return self._dead(job, MISSING, str(missing))
                case result:
                    results_by_id[id] = result
        if not results_by_id:
            return job
        try:
            return replace(job, payload=resolved(job.payload, results_by_id))
        except BadArguments as error:
            return self._dead(job, error.code, str(error))

    def _dead(self, job: Claimed, kind: str, text: str) -> Outcome:
        failure = Failure(job.attempt, kind, text, "", datetime.now(UTC), self._worker)
        return Failed(failure, final=True, reason=kind)

    async def _read(self, ids: set[UUID]) -> dict[UUID, bytes | Exception | None]:
        """A result for each id, or why there is none."""
        results_by_id: dict[UUID, bytes | Exception | None] = {}
        single = [JobId(id) for id in ids if not is_gate(id)]
        for start in range(0, len(single), PAGE):
            some = single[start : start + PAGE]
            for id, job in zip(some, await self._store.get(some), strict=True):
                try:
                    results_by_id[id] = await self._result(id, job)
                except (_NoInputError, _NotYetError) as error:
                    results_by_id[id] = error
        for gate in (GateId(id) for id in ids if is_gate(id)):
            try:
                results_by_id[gate] = await self._results(gate)
            except (_NoInputError, _NotYetError) as error:
                results_by_id[gate] = error
        return results_by_id

    async def _results(self, gate: GateId) -> bytes:
        if (await self._store.gates([gate]))[0] is None:
            raise _NoInputError(f"group {gate}, whose results are arguments, is not stored any more")
        results: list[bytes | None] = []
        size = 0
        async for id, job in members(self._store, gate):
            results.append(await self._result(id, job))
            size += len(results[-1] or b"")
            if self._most is not None and size > self._most:
                raise _NoInputError(
                    f"the results of group {gate}, which are arguments, have more than {self._most:,} bytes, which is too much "
                    "for a worker over HTTP"
                )
        return array(results)

    async def _result(self, id: JobId, job: Job | None) -> bytes | None:
        if job is None:
            raise _NoInputError(f"job {id}, whose result is an argument, is not stored any more")
        label = f"job {id} of {job.task}, whose result is an argument,"
        if job.state is not JobState.DONE:
            if job.state.finished:
                raise _NoInputError(f"{label} is {job.state}")
            raise _NotYetError(f"{label} runs again")
        if job.result_expired:
            raise _NoInputError(f"{label} is done, and its result_ttl is over or 0")
        if job.result is None or not job.result.startswith(REFERENCE):
            return job.result
        try:
            return (await fetched(job, self._large_results)).result
        except (ResultExpired, SerializationError, ConfigError) as error:
            raise _NoInputError(str(error)) from None


class InputSlots:
    """Attempts that wait for their inputs. They hold no slot."""

    running = 0

    def __init__(self, reader: InputReader, end: Callable[[Attempt, Outcome], None]) -> None:
        self._reader = reader
        self._end = end
        self._reads: dict[asyncio.Task[None], list[Attempt]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._reads.values()))

    def read(self, attempts: list[Attempt], start: Start) -> None:
        """Call `start` with the attempts whose arguments are complete, and end the others."""
        task = asyncio.create_task(self._read(attempts, start), name="headrace-inputs")
        self._reads[task] = attempts

    def put(self, attempts: list[Attempt]) -> None:
        raise NotImplementedError("attempts are read, and then put into other slots")

    def take_back(self, before: float) -> list[Attempt]:
        """All of them: this is called when the worker stops."""
        del before
        reads, self._reads = self._reads, {}
        for task in reads:
            task.cancel()
        return [attempt for attempts in reads.values() for attempt in attempts]

    def under_way(self) -> list[Attempt]:
        return []

    def interrupt(self, attempt: Attempt) -> None:
        """The slot that gets the attempt sees `attempt.reason`."""

    async def close(self) -> None:
        for task in self._reads:
            task.cancel()
        if self._reads:
            await asyncio.wait(self._reads)

    async def _read(self, attempts: list[Attempt], start: Start) -> None:
        backoff, give_up = Backoff(), monotonic() + PATIENCE
        while True:
            try:
                filled = await self._reader.fill(attempts)
                break
            except (Unavailable, OutcomeUnknown):
                if monotonic() > give_up:
                    filled = [(attempt, Released()) for attempt in attempts]
                    break
            except Exception as error:  # noqa: BLE001  # a storage of results may raise anything
                log.exception("the inputs of %d jobs cannot be read", len(attempts))
                filled = [(attempt, outcome_of.of_error(attempt, error)) for attempt in attempts]
                break
            await asyncio.sleep(backoff.next())
        # The attempts leave this line in the same turn of the loop in which they get into another one, or end.
        task = asyncio.current_task()
        assert task is not None
        self._reads.pop(task, None)
        ready: list[Attempt] = []
        for attempt, outcome in filled:
            if outcome is None:
                ready.append(attempt)
            else:
                self._end(attempt, outcome)
        if ready:
            start(ready)
