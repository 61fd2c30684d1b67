"""Which actions end the reason why a job does not run. Sentences name them as commands, and programs find them here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from headrace.model.job import Job
from headrace.model.lane import Ahead, split_limit
from headrace.model.outcome import PAUSED
from headrace.policy.explain.answer import Explanation, HelpfulAction, Reason
from headrace.policy.explain.reasons import Around, may_open


def helpful(
    job: Job, why: Explanation, ahead: Ahead, around: Around, now: datetime, ends: datetime | None
) -> tuple[HelpfulAction, ...]:
    """The actions, the most helpful first. `ends`: the time from which the job may not start any more."""
    match why.reason:
        case Reason.PAUSED:
            return tuple(_resumed(job, ahead, around))
        case Reason.LIMITED:
            return tuple(_opened(job, ahead, around, now))
        case Reason.BLOCKED if around.held is not None and around.held.job is not None:
            dead = around.held.job
            command = f"headrace dead replay {dead.id}"
            return (HelpfulAction("retry", "job", str(dead.id), f"Replay the dead job of {dead.task}", True, command),)
        case Reason.SCHEDULED | Reason.RETRYING:
            return (_again(job, "Run now", safe=True),)
        case Reason.DEAD if job.note == "deadline":
            return ()
        case Reason.DEAD if ends is None or ends > now:
            return (_again(job, "Run again", safe=True),)
        case Reason.DONE | Reason.CANCELLED if ends is None or ends > now:
            # It has run, or an operator did not want it to run.
            return (_again(job, "Run again", safe=False),)
        case _:
            return ()


def _again(job: Job, label: str, *, safe: bool) -> HelpfulAction:
    return HelpfulAction("retry", "job", str(job.id), label, safe, f"headrace jobs retry {job.id}")


def _resumed(job: Job, ahead: Ahead, around: Around) -> Iterator[HelpfulAction]:
    if ahead.paused_by is not None:
        command = f"headrace queues resume {job.queue}"
        yield HelpfulAction("resume", "queue", job.queue, f"Resume queue {job.queue}", True, command)
    if ahead.tenant_paused_by is not None:
        command = f"headrace resume --tenant {job.tenant}"
        yield HelpfulAction("resume", "tenant", job.tenant, f"Resume tenant {job.tenant}", True, command)
    if around.pause is not None or (job.note or "").startswith(PAUSED):
        command = f"headrace resume --task {job.task}"
        yield HelpfulAction("resume", "task", job.task, f"Resume task {job.task}", True, command)


def _opened(job: Job, ahead: Ahead, around: Around, now: datetime) -> Iterator[HelpfulAction]:
    needs = {key: cost for _, key, cost in map(split_limit, job.limits)}
    for obstacle in ahead.blocked:
        if may_open(obstacle, needs.get(obstacle.key, 1), around.rules, now):
            # The refusal that closed it may come again.
            command = f"headrace limits reset {obstacle.key}"
            yield HelpfulAction("open", "limit", obstacle.key, f"Open limit {obstacle.key}", False, command)
