"""Children: jobs that a task awaits. The task gives its slot back until they are done, or until the first of them has failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from headrace.errors import (
    ConfigError,
    JobCancelled,
    JobDead,
    RemoteTaskError,
    ResultError,
    ResultExpired,
    SerializationError,
)
from headrace.model.gate import Gate, GateId, Needs, NewGate, Verdict, Wait, derived_gate_id, verdict
from headrace.model.job import BatchId, Job, JobId, JobState, job_id
from headrace.model.outcome import AWAITS
from headrace.model.step import Step
from headrace.task.batch_step import BatchStep
from headrace.task.call import JobCall
from headrace.task.context import NoCurrentJob, current_job
from headrace.task.handle import outcome
from headrace.task.journal import StepChanged, Suspension, Ticket

JOURNALLED: Final = 64 * 1024
"""Bytes of results that the journal keeps with a wait. Larger ones are read from the children again."""
_BEGIN: Final = "await "
"""Begins the name of the step that keeps the batch of children."""
_END: Final = "end of "
"""Begins the name of the step that keeps how a batch of children ended."""
_MET: Final = "keys of "
"""Begins the name of the step that keeps which jobs stand for children with keys."""


class Children(Protocol):
    """The jobs of one wait, as the app enqueues and reads them."""

    digest: bytes
    """Tells waits for different jobs apart."""
    keyed: bool
    """Whether some have a key or a unique lock. Those are enqueued first, because an earlier job may stand for one."""
    size: int
    """The number of jobs in the batch: the other ones, and those that they follow."""

    def places(self, batch: BatchId, met: Sequence[JobId]) -> list[JobId]:
        """The id of each job that is awaited, in the order of the calls."""
        ...

    async def aput_keyed(self) -> list[JobId]:
        """Enqueue those with a key or a lock. The ids of the jobs that stand for them, in their order."""
        ...

    def put_keyed(self) -> list[JobId]: ...

    async def aput(self, batch: BatchId, gate: NewGate, met: Sequence[JobId]) -> None:
        """Enqueue the batch, and let the gate count it and the jobs in `met`. A repeated call changes nothing."""
        ...

    def put(self, batch: BatchId, gate: NewGate, met: Sequence[JobId]) -> None: ...

    async def aread(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Jobs by id, with their results."""
        ...

    def read(self, ids: Sequence[JobId]) -> list[Job | None]: ...

    async def arevive(self, ids: Sequence[JobId]) -> None:
        """Let cancelled jobs run."""
        ...

    def revive(self, ids: Sequence[JobId]) -> None: ...


class ChildFailure(msgspec.Struct, frozen=True):
    """How a child ended that is not done."""

    state: JobState
    text: str
    type: str | None = None
    """The name of the error that its task raised."""
    traceback: str = ""


class WaitAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a wait gave."""

    results: list[bytes | None] | None = None
    """The results in the order of the calls. None: they are read from the children."""
    failure: ChildFailure | None = None


_encode_answer = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(WaitAnswer).decode
_encode_ids = msgspec.msgpack.Encoder().encode
_decode_ids = msgspec.msgpack.Decoder(list[JobId]).decode
_decode_id = msgspec.msgpack.Decoder(BatchId).decode


def children_gate(batch: BatchId) -> GateId:
    """The gate that counts a batch of children."""
    return derived_gate_id("children", str(batch))


def why_cancelled(parent: JobId, state: JobState) -> str:
    """The note of a child whose parent has ended."""
    return f"job {parent}, which awaited it, is {state}"


def open_batches(steps: Sequence[Step]) -> list[BatchId]:
    """The batches of children in a journal whose wait has no answer, or a failure."""
    by_name = {step.name: step for step in steps if step.name.startswith(_END)}
    batches: list[BatchId] = []
    for step in steps:
        if not step.name.startswith(_BEGIN):
            continue
        try:
            batch = _decode_id(step.value or b"")
        except msgspec.DecodeError:
            continue  # A user's own step has such a name.
        end = by_name.get(f"{_END}{batch}")
        if end is None or (answer := _answer_in(end)) is None or answer.failure is not None:
            batches.append(batch)
    return batches


def _answer_in(step: Step) -> WaitAnswer | None:
    """What a wait gave. None: it is a user's own step that has such a name."""
    try:
        return _decode_answer(step.value or b"")
    except msgspec.DecodeError:
        return None


def shown_answer(step: Step) -> str | None:
    """What a step says of children that were awaited, for display. None: another step.

    The results are left out: the tasks of the children say which of their fields are masked.
    """
    answer = _answer_in(step) if step.name.startswith(_END) else None
    return None if answer is None else "all are done" if answer.failure is None else f"one is {answer.failure.state}"


class ChildWait:
    """One wait of a task for the jobs of some calls. It takes its number in the journal when it is made."""

    def __init__(self, calls: Sequence[JobCall[Any]], what: str) -> None:
        """`what` names the wait in the journal, such as the task of the one call."""
        for call in calls:
            if not isinstance(call, JobCall) or call.task is None:
                raise ConfigError(f"{what} awaits task.job(…), not {call!r:.80}")
        try:
            job = current_job()
        except NoCurrentJob:
            raise NoCurrentJob(
                f"{what}: jobs are awaited inside a task. Elsewhere, enqueue them and wait for the result: "
                "handle = await app.aenqueue(task.job(…)); await handle.aresult()"
            ) from None
        task = calls[0].task
        assert task is not None
        self._calls = calls
        self._parent, self._queue, self._tenant = job.id, job.queue, job.tenant
        self._children = task.home.children(calls, self._tenant)
        self._step = BatchStep.begin(f"{_BEGIN}{what}", self._children.digest)
        self._keeper = self._step.keeper

    # ── in async tasks ───────────────────────────────────────────────────────

    async def results(self) -> list[bytes | None]:
        """The results in the order of the calls. Raises JobDead, JobCancelled and ResultExpired."""
        batch = await self._step.find()
        fresh = batch is None
        if batch is None:
            batch = await self._step.choose()
        with self._keeper.busy():
            met = await self._amet(batch)
            answer = self._remembered(batch)
            if answer is None:
                answer = await self._alook(batch, met, fresh=fresh)
            elif answer.failure is None and answer.results is None:
                [gate] = await self._keeper.gates([children_gate(batch)])
                answer = self._judged(gate, batch, met, await self._children.aread(self._ids(batch, met)))
        if answer is None:
            await self._keeper.suspend(self._suspension(batch))
        return _given(answer)

    async def _alook(self, batch: BatchId, met: list[JobId], *, fresh: bool) -> WaitAnswer | None:
        """How the children have ended. None: some have not."""
        keeper, gate = self._keeper, self._gate(batch)
        stored = None if fresh else (await keeper.gates([gate.id]))[0]
        if stored is None:
            await self._children.aput(batch, gate, met)
            [stored] = await keeper.gates([gate.id])
        if _waits(stored):
            return None
        jobs = await self._children.aread(self._ids(batch, met))
        if revived := self._revivable(jobs):
            await self._children.arevive(revived)
            return None
        answer = self._judged(stored, batch, met, jobs)
        if answer is not None:
            await keeper.add(self._finish(batch, answer), lazy=answer.failure is not None)
        return answer

    async def _amet(self, batch: BatchId) -> list[JobId]:
        if not self._children.keyed:
            return []
        ticket = self._ticket(_MET, batch)
        if (step := self._keeper.journal.find(ticket)) is not None:
            return _decode_ids(step.value or b"")
        met = self._checked(await self._children.aput_keyed())
        await self._keeper.add(self._keeper.journal.finish(ticket, _encode_ids(met), self._keeper.now()), lazy=False)
        return met

    # ── in sync tasks ────────────────────────────────────────────────────────

    def results_sync(self) -> list[bytes | None]:
        """The same for sync tasks, in threads and in processes. It raises a BaseException through the task's code."""
        batch = self._step.find_sync()
        fresh = batch is None
        if batch is None:
            batch = self._step.choose_sync()
        met = self._met(batch)
        answer = self._remembered(batch)
        if answer is None:
            answer = self._look(batch, met, fresh=fresh)
        elif answer.failure is None and answer.results is None:
            [gate] = self._keeper.gates_sync([children_gate(batch)])
            answer = self._judged(gate, batch, met, self._children.read(self._ids(batch, met)))
        if answer is None:
            self._keeper.suspend_sync(self._suspension(batch))
        return _given(answer)

    def _look(self, batch: BatchId, met: list[JobId], *, fresh: bool) -> WaitAnswer | None:
        keeper, gate = self._keeper, self._gate(batch)
        stored = None if fresh else keeper.gates_sync([gate.id])[0]
        if stored is None:
            self._children.put(batch, gate, met)
            [stored] = keeper.gates_sync([gate.id])
        if _waits(stored):
            return None
        jobs = self._children.read(self._ids(batch, met))
        if revived := self._revivable(jobs):
            self._children.revive(revived)
            return None
        answer = self._judged(stored, batch, met, jobs)
        if answer is not None:
            keeper.add_sync(self._finish(batch, answer), lazy=answer.failure is not None)
        return answer

    def _met(self, batch: BatchId) -> list[JobId]:
        if not self._children.keyed:
            return []
        ticket = self._ticket(_MET, batch)
        if (step := self._keeper.journal.find(ticket)) is not None:
            return _decode_ids(step.value or b"")
        met = self._checked(self._children.put_keyed())
        self._keeper.add_sync(self._keeper.journal.finish(ticket, _encode_ids(met), self._keeper.now()), lazy=False)
        return met

    # ── in both ──────────────────────────────────────────────────────────────

    def _checked(self, met: list[JobId]) -> list[JobId]:
        if self._parent in met:
            raise ConfigError(
                f"job {self._parent} awaits a job with its own key or unique lock, which is this very job: it would wait for ever"
            )
        return met

    def _ticket(self, kind: str, batch: BatchId) -> Ticket:
        return self._keeper.journal.call(f"{kind}{batch}", b"", ChildWait)

    def _gate(self, batch: BatchId) -> NewGate:
        # It has no label: a group that is listed could get further members, of which this wait knows nothing.
        return NewGate(id=children_gate(batch), queue=self._queue, tenant=self._tenant)

    def _ids(self, batch: BatchId, met: Sequence[JobId]) -> list[JobId]:
        """All that the gate counts."""
        return [*(job_id(batch, place) for place in range(self._children.size)), *met]

    def _remembered(self, batch: BatchId) -> WaitAnswer | None:
        step = self._keeper.journal.find(self._ticket(_END, batch))
        return None if step is None else _decode_answer(step.value or b"")

    def _finish(self, batch: BatchId, answer: WaitAnswer) -> Step:
        """The step that remembers the answer.

        A failure is a lazy step: it is written with the next step of a task that catches the error. The journal of a
        task that does not catch it has no answer, so when the child and the parent are replayed, the parent gets the result.
        """
        size = sum(len(result or b"") for result in answer.results or ())
        kept = answer if size <= JOURNALLED else WaitAnswer()
        ticket = Ticket(f"{_END}{batch}", 0, b"")
        return self._keeper.journal.finish(ticket, _encode_answer(kept), self._keeper.now())

    def _judged(
        self, gate: Gate | None, batch: BatchId, met: Sequence[JobId], jobs: Sequence[Job | None]
    ) -> WaitAnswer | None:
        """What these jobs say. None: one of them has not ended, because an operator has replayed it."""
        by_id: dict[JobId, Job | None] = dict(zip(self._ids(batch, met), jobs, strict=True))
        failed = gate is not None and gate.counts.done < gate.counts.size
        for job in by_id.values():
            if job is not None and (failure := _failure_of(job)) is not None:
                return WaitAnswer(failure=failure)
        gone = next((id for id, job in by_id.items() if job is None), None)
        if gone is not None and failed:
            text = f"job {gone}, which was awaited, is not stored any more"
            return WaitAnswer(failure=ChildFailure(JobState.CANCELLED, text))
        going = next((id for id, job in by_id.items() if job is not None and not job.state.finished), None)
        if going is not None:
            if gate is None:
                raise _of_child(
                    ResultExpired(f"job {going}, which was awaited before, runs again: replay this job after it")
                )
            return None
        awaited = [(id, by_id[id]) for id in self._children.places(batch, met)]
        return WaitAnswer([_result_of(id, job) for id, job in awaited])

    def _revivable(self, jobs: Sequence[Job | None]) -> list[JobId]:
        """The children that were cancelled because this job was dead, if nothing else has failed: an operator has replayed it."""
        own = why_cancelled(self._parent, JobState.DEAD)
        cancelled = [job.id for job in jobs if job is not None and job.state is JobState.CANCELLED and job.note == own]
        failed = [job for job in jobs if job is not None and job.state in {JobState.DEAD, JobState.CANCELLED}]
        return cancelled if len(cancelled) == len(failed) else []

    def _suspension(self, batch: BatchId) -> Suspension:
        number = len(self._calls)
        what = f"a job of {self._calls[0].job.task}" if number == 1 else f"{number:,} jobs"
        # FAILED is decided when one has failed, and when all are done. Both wake a suspended job.
        return Suspension(f"{AWAITS} {what}", waits=(Wait(children_gate(batch), Needs.FAILED),))

    def decoded(self, results: Sequence[bytes | None]) -> list[Any]:
        """The results as values."""
        return [decoded(call, result) for call, result in zip(self._calls, results, strict=True)]


def decoded(call: JobCall[Any], result: bytes | None) -> Any:
    """The result of a child. Raises StepChanged if it does not fit its task any more."""
    try:
        return call.codec.decode_result(result)
    except SerializationError as error:
        raise StepChanged(f"step_changed: the result of a job of {call.job.task}, which was awaited, {error}") from None


def _waits(gate: Gate | None) -> bool:
    if gate is None:
        raise ConfigError("the jobs that it awaits are in another store: await tasks of apps with the same store")
    return verdict(Needs.FAILED, gate.counts, sealed=gate.sealed) is Verdict.WAIT


def _failure_of(job: Job) -> ChildFailure | None:
    """How a child failed."""
    if job.state not in {JobState.DEAD, JobState.CANCELLED}:
        return None
    try:
        outcome(job, _NO_CODEC)
    except RemoteTaskError as error:
        return ChildFailure(job.state, str(error), error.type, job.history[-1].traceback)
    except ResultError as error:
        return ChildFailure(job.state, str(error))
    return None


_NO_CODEC: Final[Any] = None
"""The result of a job that is not done is not decoded."""


def _result_of(id: JobId, job: Job | None) -> bytes | None:
    if job is None or job.result_expired:
        gone = "is not stored any more" if job is None else "is not kept, because its result_ttl is over or 0"
        raise _of_child(
            ResultExpired(
                f"job {id} is done, and its result, which was awaited, {gone}: raise keep_done, so that results stay for as "
                "long as the slowest job of a wait takes"
            )
        )
    return job.result


def _given(answer: WaitAnswer | None) -> list[bytes | None]:
    assert answer is not None
    failure = answer.failure
    if failure is None:
        assert answer.results is not None
        return answer.results
    if failure.state is JobState.CANCELLED:
        raise _of_child(JobCancelled(failure.text))
    error = JobDead(failure.text) if failure.type is None else RemoteTaskError(failure.text, failure.type)
    if failure.traceback:
        error.add_note(failure.traceback)
    raise _of_child(error)


def _of_child(error: ResultError) -> ResultError:
    """Another attempt would get the same answer, so the error is final for a task that does not catch it."""
    error.of_child = True
    return error
