"""What holds a waiting job back besides earlier jobs, in words: pauses, limits, tenants' turns, a queue's policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from headrace.model import duration
from headrace.model.job import Job
from headrace.model.lane import Ahead, Blocked, split_limit
from headrace.model.lease import CLOSED, Presence
from headrace.policy.explain.sentences import Times, line
from headrace.policy.explain.upstream import Held, WaitView
from headrace.policy.flow import Ageing, Strict, Weighted, name_of
from headrace.policy.queue import QueueOptions
from headrace.policy.recovery import unpack


class PauseFields(Protocol):
    """The part of a pause that is read here. Stores are in a higher package."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def by(self) -> str: ...
    @property
    def since(self) -> datetime: ...
    @property
    def until(self) -> datetime | None: ...


class LimitRuleFields(Protocol):
    """The part of a limit's rule that is read here."""

    @property
    def burst(self) -> float: ...
    @property
    def closed_until(self) -> datetime | None: ...
    @property
    def state(self) -> bytes: ...


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a job's surroundings, besides its place in line."""

    pause: PauseFields | None = None
    """The pause of its task."""
    rules: Mapping[str, LimitRuleFields] = {}
    tenants: int = 0
    """Tenants that have ready jobs of its priority in its queue."""
    waits: tuple[WaitView, ...] = ()
    """What a blocked job waits for."""
    held: Held | None = None
    """The dead job that holds it."""
    queue: QueueOptions | None = None
    """The queue as its app declares it. None: it does not, or the app is not available."""


def blocked(job: Job, obstacles: Sequence[Blocked], rules: Mapping[str, LimitRuleFields], times: Times) -> str:
    """Every limit that stops it."""
    needs = {key: cost for _, key, cost in map(split_limit, job.limits)}
    return "; ".join(
        _one(obstacle, needs.get(obstacle.key, 1), _rule(obstacle.key, rules), times) for obstacle in obstacles
    )


def _rule(key: str, rules: Mapping[str, LimitRuleFields]) -> LimitRuleFields | None:
    return rules.get(key) or rules.get(key.partition(":")[0])


def _one(obstacle: Blocked, cost: int, rule: LimitRuleFields | None, times: Times) -> str:
    limit = f"limit {obstacle.key}"
    if obstacle.never or (obstacle.concurrency is not None and cost > obstacle.concurrency):
        return _too_little(obstacle, cost, rule)
    closed_until = None if rule is None else rule.closed_until
    if obstacle.concurrency is not None:
        jobs = ", ".join(map(str, obstacle.by))
        by = f" by {'job' if len(obstacle.by) == 1 else 'jobs'} {jobs}" if jobs else ""
        if closed_until is not None:
            tried = f"{limit} is being tried with one job at a time after a refusal or failures, until one succeeds"
            return f"{tried}; it is held{by}" if by else tried
        held = f"{obstacle.held:,} of {obstacle.concurrency:,} held{by}"
        if (free := obstacle.concurrency - obstacle.held) > 0:
            return f"{limit} has too little left: this job needs {cost:,} units, {free:,} free, {held}"
        return f"{limit} is full: {held}"
    until = times.until(obstacle.opens_at)
    if closed_until is not None and closed_until > times.now:
        return (
            f"{limit} is closed{until}, after a refusal or failures; to open it: headrace limits reset {obstacle.key}"
        )
    return f"{limit} is rate limited{until}"


def _too_little(obstacle: Blocked, cost: int, rule: LimitRuleFields | None) -> str:
    """The job needs more than the rule can give: for ever, or until a reduced limit has recovered."""
    most = obstacle.concurrency if obstacle.concurrency is not None else None if rule is None else rule.burst
    how = "allows" if obstacle.concurrency is not None else "lets"
    room = "too few units" if most is None else f"{most:,.0f} units"
    sentence = (
        f"limit {obstacle.key} {how} {room}{'' if how == 'allows' else ' go at once'}, and this job needs {cost:,}"
    )
    if rule is not None and _cut_down(rule):
        return f"{sentence}: it was cut down after a refusal and recovers by and by; to open it: headrace limits reset {obstacle.key}"
    option = "concurrency" if obstacle.concurrency is not None else "burst"
    return f"{sentence}: it can never run; headrace limits set {obstacle.key} --{option} {cost}"


def may_open(obstacle: Blocked, cost: int, rules: Mapping[str, LimitRuleFields], now: datetime) -> bool:
    """Whether the limit is closed or cut down, so that a reset opens it."""
    rule = _rule(obstacle.key, rules)
    if rule is None:
        return False
    if obstacle.never or (obstacle.concurrency is not None and cost > obstacle.concurrency):
        return _cut_down(rule)
    return obstacle.concurrency is None and rule.closed_until is not None and rule.closed_until > now


def _cut_down(rule: LimitRuleFields) -> bool:
    return unpack(rule.state).health.factor < 1


STOPS = {
    "quiet": "was told to claim nothing more (`headrace workers quiet`, TSTP, or it is stopping)",
    "settling": "cannot store its results and claims nothing until it can; its log says why",
    "quarantine": "runs a job alone that was running when a worker died, and claims nothing meanwhile",
    "reserved": "has free slots only for other priorities (reserve)",
    "threads": "has no free thread, which a sync task needs (threads)",
    "processes": "has no free child process, which a process task needs",
}
"""A worker's reported reasons for starting no job, in words."""


def workers(presences: Sequence[Presence]) -> str:
    """Why these workers do not use their free slots for the job. Empty: a worker will, or none has a free slot."""
    free = [worker for worker in presences if worker.running < worker.slots]
    if not free or not all(any(reason in STOPS for reason in worker.hindered) for worker in free):
        return ""
    sentences = [
        f"worker {line(worker.name)} {' and '.join(STOPS[reason] for reason in worker.hindered if reason in STOPS)}"
        for worker in free[:3]
    ]
    more = f"; and {len(free) - 3:,} more workers likewise" if len(free) > 3 else ""
    return "; ".join(sentences) + more


def opens_at(obstacles: Sequence[Blocked]) -> datetime | None:
    """When all of them are open. None: that cannot be known."""
    times = [obstacle.opens_at for obstacle in obstacles]
    known = [time for time in times if time is not None]
    return max(known) if known and len(known) == len(times) else None


def paused(job: Job, ahead: Ahead, around: Around, times: Times) -> str:
    """Which of its queue, its tenant and its task are paused. Empty: none."""
    sentences: list[str] = []
    if (by := ahead.paused_by) is not None:
        when = times.since(ahead.paused_since) + times.until(ahead.paused_until)
        sentences.append(_paused(f"queue {job.queue}", by, when, f"queues resume {job.queue}"))
    if (by := ahead.tenant_paused_by) is not None:
        when = times.since(ahead.tenant_paused_since) + times.until(ahead.tenant_paused_until)
        sentences.append(_paused(f"its tenant {job.tenant}", by, when, f"resume --tenant {job.tenant}"))
    if task := task_paused(job, around, times):
        sentences.append(task)
    return "; and ".join(sentences)


def closed(job: Job, around: Around, times: Times) -> str:
    """A sentence about the open hours of its queue. Empty: it is open, or its app does not say."""
    hours = None if around.queue is None else around.queue.open
    if hours is None or hours.is_open(times.now):
        return ""
    return f"queue {job.queue} is closed{times.until(hours.next_change(times.now))}: it is open {hours}"


def closed_by_workers(job: Job, serving: Sequence[Presence]) -> str:
    """The same, as the workers report it, for a caller without the app."""
    if not serving or not all(f"{CLOSED}{job.queue}" in worker.hindered for worker in serving):
        return ""
    return f"queue {job.queue} is closed: its workers claim nothing from it outside its open hours"


def task_paused(job: Job, around: Around, times: Times) -> str:
    """A sentence about the pause of its task. Empty: there is none."""
    if (pause := around.pause) is None:
        return ""
    when = times.since(pause.since) + times.until(pause.until)
    return _paused(f"task {job.task}", pause.by, when, f"resume --task {job.task}")


def _paused(what: str, by: str, when: str, resume: str) -> str:
    who = line(by)
    return f"{what} is paused{f' by {who}' if who else ''}{when}; to let it go on: headrace {resume}"


def paused_until(ahead: Ahead, around: Around) -> datetime | None:
    """When the last of its pauses ends. None: one has no end."""
    ends = [ahead.paused_until] if ahead.paused_by is not None else []
    ends += [ahead.tenant_paused_until] if ahead.tenant_paused_by is not None else []
    ends += [around.pause.until] if around.pause is not None else []
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) and known else None


def turns(job: Job, around: Around) -> str:
    """How tenants and priorities share the queue. Empty: they do not."""
    sentences: list[str] = []
    queue, fair = around.queue, "round_robin" if around.queue is None else around.queue.fair
    if around.tenants > 1 and fair != "off":
        how = "each as it has jobs waiting" if fair == "proportional" else "in turns"
        if queue is not None and queue.fair_by == "time" and fair == "round_robin":
            how = "in turns of equal run time"
        weight = 1 if queue is None else queue.weights.get(job.tenant, 1)
        own = f", this one with weight {weight}" if weight > 1 else ""
        sentences.append(f"{around.tenants:,} tenants share queue {job.queue} {how}{own}")
    match None if queue is None else queue.priority:
        case Weighted(shares=shares):
            bands = ", ".join(f"{name_of(lowest)} {share}" for lowest, share in shares)
            sentences.append(f"its priorities share the slots by weight ({bands})")
        case Ageing(every=every):
            sentences.append(f"every {duration.show(every)} of waiting counts as one more in priority")
        case Strict() | None:
            pass
    return "".join(f"; {sentence}" for sentence in sentences)


def facts(obstacles: Sequence[Blocked], around: Around) -> dict[str, Any]:
    """The facts in the sentences."""
    return {
        "limits": [msgspec.structs.asdict(obstacle) for obstacle in obstacles],
        "tenants": around.tenants,
        "task_paused_by": None if around.pause is None else around.pause.by,
        "task_paused_until": None if around.pause is None else around.pause.until,
        "priority_policy": None if around.queue is None else str(around.queue.priority),
        "fair": None if around.queue is None else around.queue.fair,
    }
