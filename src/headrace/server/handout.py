"""What workers over HTTP get with their jobs: results of other jobs that are arguments, and the steps of earlier attempts."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from headrace.errors import HeadraceError
from headrace.model.job import Claimed, Failure
from headrace.model.lease import Token
from headrace.model.outcome import Failed, Outcome, Released
from headrace.model.step import MAX_JOURNAL, MAX_STEPS, Step
from headrace.store.contract import Store
from headrace.task.journal import StepTooLarge
from headrace.task.large_results import LargeResults
from headrace.worker.inputs import InputReader, has_inputs

log = logging.getLogger("headrace.server")

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of results and steps in one answer. Only the first job may exceed them; the others are handed back."""
AT_ONCE: Final = 50
"""Jobs whose inputs are read together."""
REMEMBERED: Final = 100_000
"""Steps of running jobs that the server remembers, without their values."""

CompleteJob = tuple[Claimed, list[Step]]


class Handout:
    """Completes jobs that were claimed over HTTP, as a Python worker does it for its own."""

    def __init__(self, store: Store, large_results: LargeResults | None, worker: str) -> None:
        self._store = store
        self._inputs = InputReader(store, large_results, worker, most=MOST_BYTES)
        self._worker = worker

    async def complete(self, jobs: Sequence[Claimed], *, steps: bool) -> list[CompleteJob | Outcome]:
        """Each job with its arguments and its finished steps, or the outcome of a job that cannot start, or not now."""
        if not steps and not any(map(has_inputs, jobs)):
            return [(job, []) for job in jobs]
        answers: list[CompleteJob | Outcome] = []
        size = 0
        for start in range(0, len(jobs), AT_ONCE):
            part = jobs[start : start + AT_ONCE]
            if size > MOST_BYTES:
                answers += (Released() for _ in part)
                continue
            for job in await self._with_inputs(part):
                if not isinstance(job, Claimed):
                    answers.append(job)
                elif size > MOST_BYTES:
                    answers.append(Released())
                else:
                    journal = await self._store.read_steps(job.id) if steps and job.attempt > 1 else []
                    size += len(job.payload) + sum(len(step.value or b"") for step in journal)
                    answers.append((job, journal))
        return answers

    async def _with_inputs(self, jobs: Sequence[Claimed]) -> list[Claimed | Outcome]:
        if not any(map(has_inputs, jobs)):
            return list(jobs)
        try:
            return await self._inputs.complete(jobs)
        except HeadraceError:
            raise
        except Exception as error:  # a storage of results may raise anything
            log.exception("the inputs of %d jobs cannot be read", len(jobs))
            return [self._failed(job, error) if has_inputs(job) else job for job in jobs]

    def _failed(self, job: Claimed, error: Exception) -> Outcome:
        text = "the storage of large results did not give an input"
        return Failed(Failure(job.attempt, type(error).__name__, text, "", datetime.now(UTC), self._worker))


# ── the bounds of journals ───────────────────────────────────────────────────


class JournalSize:
    """What the journal of one running job holds."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._known: set[int] = set()
        self._bytes = 0
        self.advanced = False
        """Whether this attempt has stored a new step."""
        for step in steps:
            self.add(step)

    def __len__(self) -> int:
        return len(self._known)

    def has(self, step: Step) -> bool:
        """Whether the job has a step of this name and number, which stays."""
        return hash((step.name, step.number)) in self._known

    def check(self, step: Step) -> None:
        """Raise StepTooLarge if the journal would have too many steps or bytes with this one."""
        if len(self._known) >= MAX_STEPS or self._bytes + len(step.value or b"") > MAX_JOURNAL:
            raise StepTooLarge(f"a job has at most {MAX_STEPS:,} steps, with {MAX_JOURNAL:,} bytes of values in all")

    def add(self, step: Step) -> None:
        self._known.add(hash((step.name, step.number)))
        self._bytes += len(step.value or b"")


class JournalSizes:
    """The sizes of the journals to which workers add, by lease and position. A forgotten one is read again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: OrderedDict[tuple[Token, int], JournalSize] = OrderedDict()
        self._steps = 0
        """Of all of them."""

    async def write(self, token: Token, position: int, job: Claimed, step: Step) -> bool:
        """Store a step of a running job. False: the store refused it. Raises StepTooLarge."""
        size = self._sizes.get((token, position))
        if size is None:
            size = JournalSize(await self._store.read_steps(job.id))
        new = not size.has(step)
        if new:
            size.check(step)
        if await self._store.add_steps(token, [(position, step)]):
            return False
        self.forget(token, [position])
        if new:
            size.add(step)
            size.advanced = True
        self._sizes[token, position] = size
        self._steps += len(size)
        while self._steps > REMEMBERED and len(self._sizes) > 1:
            self._steps -= len(self._sizes.popitem(last=False)[1])
        return True

    def advanced(self, token: Token, position: int) -> bool:
        """Whether an attempt has stored a new step, as far as this server knows."""
        size = self._sizes.get((token, position))
        return size is not None and size.advanced

    def forget(self, token: Token, positions: Iterable[int]) -> None:
        for position in positions:
            if (size := self._sizes.pop((token, position), None)) is not None:
                self._steps -= len(size)
