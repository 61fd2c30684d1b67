"""Explanations, case by case: what is seen at one moment → the reason, the sentence, the time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headrace.model.gate import Counts, Gate, GateId, Links, Needs, Wait, new_gate_id
from headrace.model.job import Failure, Job, JobId, JobState, job_id, new_batch
from headrace.model.lane import Ahead, Blocked, LaneView
from headrace.model.lease import Presence, new_worker_id
from headrace.model.outcome import ASLEEP
from headrace.model.outcome import PAUSED as PUT_OFF
from headrace.model.records import LimitRule, Pause
from headrace.policy.explain.answer import Explanation, Reason
from headrace.policy.explain.explain import NOTHING_AROUND, explain, look
from headrace.policy.explain.reasons import Around
from headrace.policy.explain.upstream import Held, WaitView
from headrace.policy.flow import ageing, weighted
from headrace.policy.queue import declare
from headrace.policy.recovery import LimitHealth, State, pack
from headrace.task.codec import JobOptions, encode_options
from headrace.task.retry import Retry
from headrace.task.task_options import TaskOptions

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ID = job_id(new_batch(), 7)
WORKER = new_worker_id()
BANDS = weighted({"high": 80, "low": 20})
TASK = TaskOptions(retry=Retry(max_attempts=5))


def job(state: JobState = JobState.READY, **fields: Any) -> Job:
    usual: dict[str, Any] = {
        "id": ID,
        "task": "shop.charge",
        "queue": "billing",
        "priority": 0,
        "tenant": "",
        "limits": (),
        "attempt": 0,
        "failures": 0,
        "crashes": 0,
        "enqueued_at": NOW - HOUR,
        "payload": b"",
    }
    if state.finished:
        usual["finished_at"] = NOW - 3 * MINUTE
    if state is JobState.RUNNING:
        usual |= {"worker": WORKER, "claimed_at": NOW - timedelta(seconds=30), "attempt": 1}
    if state is JobState.SCHEDULED:
        usual["run_at"] = NOW + 5 * MINUTE
    return Job(state=state, **(usual | fields))


BEFORE = job(JobState.RUNNING, id=job_id(new_batch(), 0))
LETTER = job(JobState.DEAD, id=job_id(new_batch(), 0), note="max_attempts")
GROUP = Gate(
    id=new_gate_id(),
    queue="billing",
    label="import 7",
    tenant="",
    sealed=True,
    counts=Counts(1_000_000, done=998_211),
    made_at=NOW - HOUR,
    changed_at=NOW - MINUTE,
)


def waits(view: WaitView, held: Held | None = None) -> Explanation:
    """The explanation of a job that waits for this."""
    around = Around(waits=(view,), held=held)
    return explain(job(JobState.BLOCKED, waits=(view.wait,)), None, [], TASK, NOW, around)


def worker(**fields: Any) -> Presence:
    usual: dict[str, Any] = {
        "id": WORKER,
        "name": "host:1",
        "queues": ("billing",),
        "slots": 10,
        "running": 3,
        "version": "1",
        "started_at": NOW - HOUR,
        "tasks": ("shop.charge",),
    }
    return Presence(**(usual | fields))


def failed(attempt: int = 1, kind: str = "ValueError", message: str = "no money") -> Failure:
    return Failure(attempt, kind, message, "Traceback", NOW - MINUTE, "host:1")


def why(
    what: Job,
    *workers: Presence,
    options: TaskOptions | None = TASK,
    around: Around = NOTHING_AROUND,
    **ahead: Any,
) -> Explanation:
    return explain(what, Ahead(limit=10_000, **ahead), workers, options, NOW, around)


def own(**options: Any) -> bytes | None:
    return encode_options(JobOptions(**options))


PAUSED: dict[str, Any] = {"paused_by": "ann", "paused_since": NOW - 2 * HOUR}
RETRYING = job(JobState.SCHEDULED, failures=2, attempt=2, history=(failed(1), failed(2)))
PARKED = job(JobState.SCHEDULED, attempt=1, note="no worker here knows task shop.charge")
FREE = worker()
FULL = worker(running=10)
DEAF = worker(tasks=("mail.send",))
ELSEWHERE = worker(queues=("mail",))
SUSPECT = "it was running when a worker died, so it is claimed alone"
NOW_RETRY = f"to run it now: headrace jobs retry {ID}"
AGAIN = f"to run it again: headrace jobs retry {ID}"
START = "start one with: headrace worker APP --queues billing"
RESUME = "to let it go on: headrace queues resume billing"

TABLE: list[tuple[str, Explanation, Reason, str]] = [
    (
        "done",
        why(job(JobState.DONE, attempt=2)),
        Reason.DONE,
        "done: it ended well at 2030-01-01 11:57:00 UTC (3m ago), on attempt 2",
    ),
    (
        "dead",
        why(job(JobState.DEAD, failures=5, note="max_attempts", history=(failed(),))),
        Reason.DEAD,
        "dead at 2030-01-01 11:57:00 UTC (3m ago) after 5 failures (max_attempts); the last: ValueError: no money; "
        + AGAIN,
    ),
    (
        "dead by a crash",
        why(job(JobState.DEAD, crashes=3, note="worker_lost")),
        Reason.DEAD,
        f"dead at 2030-01-01 11:57:00 UTC (3m ago) after 3 crashes (worker_lost); {AGAIN}",
    ),
    (
        "dead because of a job that it awaited",
        why(job(JobState.DEAD, note="headrace.errors.RemoteTaskError")),
        Reason.DEAD,
        (
            "dead at 2030-01-01 11:57:00 UTC (3m ago) (headrace.errors.RemoteTaskError); run that job again, and then this one: "
            f"headrace jobs retry {ID}"
        ),
    ),
    (
        "dead and too late to run again",
        why(job(JobState.DEAD, note="max_attempts", options=own(expires=600.0))),
        Reason.DEAD,
        (
            "dead at 2030-01-01 11:57:00 UTC (3m ago) (max_attempts); its expires (2030-01-01 11:10:00 UTC) has passed: to run it "
            "again, enqueue it anew"
        ),
    ),
    (
        "dead without a failure",
        why(job(JobState.DEAD, note="deadline")),
        Reason.DEAD,
        "dead at 2030-01-01 11:57:00 UTC (3m ago): its deadline left no time for another attempt",
    ),
    (
        "dead by its deadline",
        why(job(JobState.DEAD, failures=1, note="deadline", options=own(deadline=3480.0), history=(failed(),))),
        Reason.DEAD,
        (
            "dead at 2030-01-01 11:57:00 UTC (3m ago) after 1 failure: its deadline (2030-01-01 11:58:00 UTC) left no time "
            "for another attempt; the last: ValueError: no money"
        ),
    ),
    (
        "cancelled",
        why(job(JobState.CANCELLED, note="not\nneeded")),
        Reason.CANCELLED,
        "cancelled at 2030-01-01 11:57:00 UTC (3m ago): not needed",
    ),
    (
        "cancelled without a word",
        why(job(JobState.CANCELLED)),
        Reason.CANCELLED,
        "cancelled at 2030-01-01 11:57:00 UTC (3m ago)",
    ),
    (
        "expired",
        why(job(JobState.CANCELLED, note="expired", options=own(expires=600.0))),
        Reason.CANCELLED,
        "cancelled at 2030-01-01 11:57:00 UTC (3m ago): it had not started before it expired (2030-01-01 11:10:00 UTC)",
    ),
    (
        "expired after it had run",
        why(job(JobState.CANCELLED, note="expired", attempt=3, options=own(expires=600.0))),
        Reason.CANCELLED,
        "cancelled at 2030-01-01 11:57:00 UTC (3m ago): it expired before its next attempt could start (2030-01-01 11:10:00 UTC)",
    ),
    (
        "running",
        why(job(JobState.RUNNING), FREE),
        Reason.RUNNING,
        "running on host:1 since 2030-01-01 11:59:30 UTC (30s), attempt 1",
    ),
    (
        "running on a lost worker",
        why(job(JobState.RUNNING)),
        Reason.RUNNING,
        (
            f"running on {WORKER} since 2030-01-01 11:59:30 UTC (30s), attempt 1; that worker was not heard of for a minute: "
            "when its lease runs out the job goes on elsewhere"
        ),
    ),
    (
        "asked to stop",
        why(job(JobState.RUNNING, cancelling=True), FREE),
        Reason.CANCELLING,
        (
            "asked to stop, and still running on host:1 since 2030-01-01 11:59:30 UTC (30s), attempt 1; a task in a thread "
            "must look at current_job().cancelled"
        ),
    ),
    (
        "scheduled",
        why(job(JobState.SCHEDULED), FREE),
        Reason.SCHEDULED,
        f"scheduled for 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}",
    ),
    (
        "scheduled in a paused queue",
        why(job(JobState.SCHEDULED), FREE, **PAUSED),
        Reason.SCHEDULED,
        (
            f"scheduled for 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}; and queue billing is paused by ann since "
            f"2030-01-01 10:00:00 UTC (2h); {RESUME}"
        ),
    ),
    (
        "scheduled, and no worker to run it",
        why(job(JobState.SCHEDULED)),
        Reason.SCHEDULED,
        f"scheduled for 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}; and no live worker serves queue billing: {START}",
    ),
    (
        "due, and no worker to promote it",
        why(job(JobState.SCHEDULED, run_at=NOW - MINUTE)),
        Reason.NO_WORKER,
        f"due since 2030-01-01 11:59:00 UTC, but there is no live worker: {START}",
    ),
    (
        "scheduled after its end",
        why(job(JobState.SCHEDULED, options=own(expires=NOW + MINUTE)), FREE),
        Reason.SCHEDULED,
        (
            f"scheduled for 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}; it expires 2030-01-01 12:01:00 UTC (in 60s), "
            "before it is due"
        ),
    ),
    (
        "retrying",
        why(RETRYING, FREE),
        Reason.RETRYING,
        (
            "waiting for a retry: attempt 3 of 5 begins 2030-01-01 12:05:00 UTC (in 5m); the last failed: ValueError: no "
            f"money; {NOW_RETRY}"
        ),
    ),
    (
        "retrying with attempts of its own",
        why(msgspec.structs.replace(RETRYING, options=own(max_attempts=9), history=()), FREE),
        Reason.RETRYING,
        f"waiting for a retry: attempt 3 of 9 begins 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}",
    ),
    (
        "retrying a task that is not known here",
        why(msgspec.structs.replace(RETRYING, history=()), FREE, options=None),
        Reason.RETRYING,
        f"waiting for a retry: attempt 3 begins 2030-01-01 12:05:00 UTC (in 5m); {NOW_RETRY}",
    ),
    (
        "asleep",
        why(msgspec.structs.replace(RETRYING, note=f"{ASLEEP} 2030-01-01T12:05:00+00:00"), FREE),
        Reason.ASLEEP,
        f"its task sleeps until 2030-01-01 12:05:00 UTC (in 5m) and holds no slot; see its steps: headrace jobs show {ID}",
    ),
    (
        "parked",
        why(PARKED, DEAF),
        Reason.PARKED,
        (
            "parked until 2030-01-01 12:05:00 UTC (in 5m): the worker that had it does not know task shop.charge, and none "
            "of queue billing does: deploy a worker whose app declares it"
        ),
    ),
    (
        "parked by one of two",
        why(PARKED, DEAF, worker(name="host:2")),
        Reason.PARKED,
        (
            "parked until 2030-01-01 12:05:00 UTC (in 5m): the worker that had it does not know task shop.charge; host:2 of "
            "the same queue may: deploy all workers of queue billing alike"
        ),
    ),
    (
        "too late to start",
        why(job(options=own(expires=3600.0)), FREE),
        Reason.EXPIRED,
        (
            "too late: it expired at 2030-01-01 12:00:00 UTC (0ms ago); it will not start, and is cancelled as soon as a "
            "worker meets it"
        ),
    ),
    (
        "past its deadline",
        why(RETRYING, FREE, options=TaskOptions(deadline=30 * MINUTE)),
        Reason.EXPIRED,
        (
            "too late: its deadline passed at 2030-01-01 11:30:00 UTC (30m ago); it will not start, and is dead as soon as a "
            "worker meets it"
        ),
    ),
    (
        "paused",
        why(job(), FREE, lane=3, **PAUSED),
        Reason.PAUSED,
        f"queue billing is paused by ann since 2030-01-01 10:00:00 UTC (2h); {RESUME}",
    ),
    (
        "paused without an author",
        why(job(), paused_by="", paused_since=NOW - MINUTE),
        Reason.PAUSED,
        f"queue billing is paused since 2030-01-01 11:59:00 UTC (60s); {RESUME}",
    ),
    ("no worker at all", why(job()), Reason.NO_WORKER, f"no live worker serves queue billing: {START}"),
    (
        "no worker for this queue",
        why(job(), ELSEWHERE, worker(queues=("default", "mail")), lane=3),
        Reason.NO_WORKER,
        f"no live worker serves queue billing (2 workers for default, mail): {START}",
    ),
    (
        "no worker knows the task",
        why(job(), DEAF, ELSEWHERE, lane=3),
        Reason.UNKNOWN_TASK,
        (
            "no live worker of queue billing knows task shop.charge: deploy one whose app declares it; what each knows: "
            "headrace workers --json"
        ),
    ),
    (
        "behind its lane",
        why(job(), FREE, worker(name="host:2", running=5), lane=1),
        Reason.BEHIND,
        "behind 1 job of its own lane; 8 of 20 slots of the 2 workers of queue billing busy",
    ),
    (
        "behind more than was counted",
        why(job(), FULL, lane=10_000, higher=1234),
        Reason.BEHIND,
        (
            "behind 1,234 jobs of higher priority in queue billing and at least 10,000 jobs of its own lane; all 10 slots of "
            "the worker of queue billing are busy"
        ),
    ),
    (
        "a suspect behind others",
        why(job(), FULL, higher=2, suspect=True),
        Reason.BEHIND,
        "behind 2 jobs of higher priority in queue billing; all 10 slots of the worker of queue billing are busy; then "
        + SUSPECT,
    ),
    ("a suspect", why(job(), FULL, suspect=True), Reason.SUSPECT, f"next in its lane, as a suspect: {SUSPECT}"),
    (
        "a worker in quarantine",
        why(job(), worker(hindered=("quarantine", "stuck"))),
        Reason.HINDERED,
        (
            "next in its lane, but worker host:1 runs a job alone that was running when a worker died, and claims nothing "
            "meanwhile"
        ),
    ),
    (
        "two workers that take nothing, and a full one",
        why(job(), worker(hindered=("settling",)), worker(name="host:2", hindered=("quiet", "reserved")), FULL),
        Reason.HINDERED,
        (
            "next in its lane, but worker host:1 cannot store its results and claims nothing until it can; its log says why; "
            "worker host:2 was told to claim nothing more (`headrace workers quiet`, TSTP, or it is stopping) and has free slots only for other "
            "priorities (reserve)"
        ),
    ),
    (
        "a worker whose threads are taken",
        why(job(), worker(hindered=("threads",))),
        Reason.HINDERED,
        "next in its lane, but worker host:1 has no free thread, which a sync task needs (threads)",
    ),
    (
        "one of two workers takes jobs",
        why(job(), worker(hindered=("quiet",)), worker(hindered=("stuck",))),
        Reason.NEXT,
        "next in its lane, with free slots at the 2 workers of queue billing: it should start within a second",
    ),
    (
        "behind others at a worker that takes nothing",
        why(job(), worker(hindered=("quiet",)), lane=2),
        Reason.BEHIND,
        (
            "behind 2 jobs of its own lane; 3 of 10 slots of the worker of queue billing busy; worker host:1 was told to "
            "claim nothing more (`headrace workers quiet`, TSTP, or it is stopping)"
        ),
    ),
    (
        "the only slot taken",
        why(job(), worker(slots=1, running=1)),
        Reason.BUSY,
        "next in its lane, but the only slot of the worker of queue billing is busy: it starts when one is free; see: headrace workers",
    ),
    (
        "no slot free",
        why(job(), worker(running=12), DEAF),
        Reason.BUSY,
        (
            "next in its lane, but all 10 slots of the worker of queue billing are busy: it starts when one is free; see: "
            "headrace workers"
        ),
    ),
    (
        "next",
        why(job(), worker(tasks=())),
        Reason.NEXT,
        "next in its lane, with free slots at the worker of queue billing: it should start within a second",
    ),
    (
        "next, with others of other tenants",
        why(job(tenant="acme"), FULL, around=Around(tenants=3, queue=declare("billing", weights={"acme": 2}))),
        Reason.BUSY,
        (
            "next in its lane, but all 10 slots of the worker of queue billing are busy: it starts when one is free; 3 tenants "
            "share queue billing in turns, this one with weight 2; see: headrace workers"
        ),
    ),
    (
        "behind others, in a queue with weighted bands",
        why(
            job(),
            FULL,
            higher=2,
            around=Around(tenants=2, queue=declare("billing", fair="proportional", priority=BANDS)),
        ),
        Reason.BEHIND,
        (
            "behind 2 jobs of higher priority in queue billing; all 10 slots of the worker of queue billing are busy; 2 tenants "
            "share queue billing each as it has jobs waiting; its priorities share the slots by weight (high 80, low 20)"
        ),
    ),
    (
        "behind others, in a queue with ageing",
        why(
            job(),
            FULL,
            higher=2,
            around=Around(tenants=2, queue=declare("billing", fair_by="time", priority=ageing("1m"))),
        ),
        Reason.BEHIND,
        (
            "behind 2 jobs of higher priority in queue billing; all 10 slots of the worker of queue billing are busy; 2 tenants "
            "share queue billing in turns of equal run time; every 1m of waiting counts as one more in priority"
        ),
    ),
    (
        "its limit is full",
        why(job(), FREE, blocked=(Blocked(key="shop:acme", concurrency=4, held=4, by=(ID, WORKER)),), lane=3),
        Reason.LIMITED,
        (f"limit shop:acme is full: 4 of 4 held by jobs {ID}, {WORKER}; then behind 3 jobs of its own lane"),
    ),
    (
        "its limit is too small",
        why(job(limits=("shop@5:acme",)), FREE, blocked=(Blocked(key="shop:acme", concurrency=4, held=0),)),
        Reason.LIMITED,
        (
            "limit shop:acme allows 4 units, and this job needs 5: it can never run; headrace limits set shop:acme "
            "--concurrency 5"
        ),
    ),
    (
        "its limit lets less go at once",
        why(
            job(limits=("api@5",)),
            FREE,
            blocked=(Blocked(key="api", never=True),),
            around=Around(rules={"api": LimitRule(rate=1.0, burst=4.0)}),
        ),
        Reason.LIMITED,
        "limit api lets 4 units go at once, and this job needs 5: it can never run; headrace limits set api --burst 5",
    ),
    (
        "its limit lets less go until it has recovered",
        why(
            job(limits=("api@5",)),
            FREE,
            blocked=(Blocked(key="api", concurrency=4, never=True),),
            around=Around(rules={"api": LimitRule(concurrency=4, state=pack(State(health=LimitHealth(factor=0.5))))}),
        ),
        Reason.LIMITED,
        (
            "limit api allows 4 units, and this job needs 5: it was cut down after a refusal and recovers by and by; to open "
            "it: headrace limits reset api"
        ),
    ),
    (
        "its limit has less left than it needs",
        why(job(limits=("api@3",)), FREE, blocked=(Blocked(key="api", concurrency=5, held=4, by=(ID,)),)),
        Reason.LIMITED,
        f"limit api has too little left: this job needs 3 units, 1 free, 4 of 5 held by job {ID}",
    ),
    (
        "its limit is half open",
        why(
            job(),
            FREE,
            blocked=(Blocked(key="api", concurrency=1, held=1, by=(ID,)),),
            around=Around(rules={"api": LimitRule(rate=1.0, closed_until=NOW - MINUTE)}),
        ),
        Reason.LIMITED,
        (
            "limit api is being tried with one job at a time after a refusal or failures, until one succeeds; it is held by "
            f"job {ID}"
        ),
    ),
    (
        "its queue is paused for a time",
        why(job(), FREE, paused_by="ann", paused_since=NOW - MINUTE),
        Reason.PAUSED,
        f"queue billing is paused by ann since 2030-01-01 11:59:00 UTC (60s); {RESUME}",
    ),
    (
        "closed, as its workers report it",
        why(job(), worker(hindered=("closed billing",))),
        Reason.CLOSED,
        "queue billing is closed: its workers claim nothing from it outside its open hours",
    ),
    (
        "next, and it expires",
        why(job(options=own(deadline=2 * 3600.0)), FREE, options=TaskOptions(expires=65 * MINUTE)),
        Reason.NEXT,
        (
            "next in its lane, with free slots at the worker of queue billing: it should start within a second; it expires "
            "2030-01-01 12:05:00 UTC (in 5m); its deadline is 2030-01-01 13:00:00 UTC (in 60m)"
        ),
    ),
    (
        "blocked by a job",
        waits(WaitView(wait=Wait(BEFORE.id), job=BEFORE)),
        Reason.BLOCKED,
        (
            f"blocked until job {BEFORE.id} of shop.charge is done: it is running since 2030-01-01 11:59:30 UTC; "
            f"see: headrace jobs explain {BEFORE.id}"
        ),
    ),
    (
        "blocked by a group",
        waits(WaitView(wait=Wait(GROUP.id), gate=GROUP)),
        Reason.BLOCKED,
        "blocked until all 1,000,000 jobs of group 'import 7' are done: 998,211 done, 1,789 to go",
    ),
    (
        "blocked by a group that grows",
        waits(WaitView(wait=Wait(GROUP.id, Needs.ENDED), gate=msgspec.structs.replace(GROUP, sealed=False, label=""))),
        Reason.BLOCKED,
        (
            "blocked until all 1,000,000 jobs have ended: 998,211 done, 1,789 to go; still being filled, last at "
            "2030-01-01 11:59:00 UTC"
        ),
    ),
    (
        "held by a dead job",
        waits(WaitView(wait=Wait(LETTER.id), job=LETTER), held=Held(LETTER)),
        Reason.BLOCKED,
        (
            f"held: job {LETTER.id} of shop.charge is dead since 2030-01-01 11:57:00 UTC (3m) (max_attempts); "
            f"headrace dead replay {LETTER.id} lets this go on, headrace dead discard {LETTER.id} cancels it"
        ),
    ),
]


@pytest.mark.parametrize(("found", "reason", "sentence"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(found: Explanation, reason: Reason, sentence: str):
    assert found.sentence == str(found) == sentence
    assert found.reason is reason
    due = reason in {Reason.SCHEDULED, Reason.ASLEEP, Reason.RETRYING, Reason.PARKED}
    assert found.until == (NOW + 5 * MINUTE if due else None)
    assert msgspec.json.encode(found)


COMMANDS = re.compile(r"headrace (?:jobs retry|dead replay|queues resume|resume --\w+|limits reset) \S+?(?=[;, ]|$)")


@pytest.mark.parametrize(("found", "reason"), [row[1:3] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_help_is_what_the_sentence_says(found: Explanation, reason: Reason):
    helps = [action.command for action in found.help]
    if reason in {Reason.DONE, Reason.CANCELLED}:
        assert not any(action.safe for action in found.help), "it is for an operator to decide"
    else:
        assert set(helps) <= set(COMMANDS.findall(found.sentence))
        assert bool(helps) is bool(COMMANDS.findall(found.sentence))
        assert all(action.safe is (action.action != "open") for action in found.help)


def test_a_paused_job_lists_every_pause():
    why = explain(
        job(tenant="acme"),
        Ahead(limit=9, paused_by="ann", tenant_paused_by="bob"),
        [worker()],
        TASK,
        NOW,
        Around(pause=Pause("task", "shop.charge", by="cy", since=NOW)),
    )
    assert [(action.action, action.kind, action.name) for action in why.help] == [
        ("resume", "queue", "billing"),
        ("resume", "tenant", "acme"),
        ("resume", "task", "shop.charge"),
    ]


def test_every_reason_is_in_the_table():
    assert {reason for _, _, reason, _ in TABLE} == set(Reason)


def test_details_are_for_programs():
    found = why(RETRYING, FREE, worker(name="host:2"), DEAF, **PAUSED, suspect=True)
    assert found.details["attempt"] == 3
    assert found.details["max_attempts"] == 5
    assert found.details["last_failure"] == {
        "attempt": 2,
        "kind": "ValueError",
        "message": "no money",
        "at": NOW - MINUTE,
    }
    assert (found.details["workers"], found.details["workers_that_know_the_task"]) == (3, 2)
    assert (found.details["slots"], found.details["busy"]) == (20, 6)
    assert (found.details["paused_by"], found.details["suspect"]) == ("ann", True)


def test_a_sentence_is_one_line_whatever_the_failure_says():
    loud = job(JobState.DEAD, failures=1, note="x\ny" * 300, history=(failed(message="a\n" * 5000),))
    sentence = why(loud).sentence
    assert "\n" not in sentence
    assert len(sentence) < 600


def test_options_that_cannot_be_read_hide_nothing_else():
    assert why(job(options=b"\xff"), FREE).reason is Reason.NEXT


def test_what_ends_by_itself_says_when():
    closed = Blocked(key="api", opens_at=NOW + MINUTE)
    found = why(job(), FREE, blocked=(closed,), around=Around(rules={"api": LimitRule(closed_until=NOW + MINUTE)}))
    assert (found.reason, found.until) == (Reason.LIMITED, NOW + MINUTE)
    assert str(found) == (
        "limit api is closed until 2030-01-01 12:01:00 UTC (in 60s), after a refusal or failures; to open it: headrace "
        "limits reset api"
    )
    found = why(job(), FREE, blocked=(closed,), around=Around(rules={"api": LimitRule(rate=0.1)}))
    assert (str(found), found.until) == (
        "limit api is rate limited until 2030-01-01 12:01:00 UTC (in 60s)",
        NOW + MINUTE,
    )
    # Those before it need what there is then.
    assert why(job(), FREE, blocked=(closed,), lane=2).until is None
    full = Blocked(key="shop", concurrency=1, held=1)
    assert why(job(), FREE, blocked=(closed, full)).until is None
    pause: dict[str, Any] = {
        "paused_by": "",
        "paused_until": NOW + HOUR,
        "tenant_paused_by": "bob",
        "tenant_paused_until": NOW + MINUTE,
    }
    found = why(job(tenant="acme"), FREE, **pause)
    assert (found.reason, found.until) == (Reason.PAUSED, NOW + HOUR)
    assert str(found) == (
        "queue billing is paused until 2030-01-01 13:00:00 UTC (in 60m); to let it go on: headrace queues resume billing; "
        "and its tenant acme is paused by bob until 2030-01-01 12:01:00 UTC (in 60s); to let it go on: headrace resume "
        "--tenant acme"
    )
    assert why(job(), FREE, paused_by="ann", tenant_paused_by="", tenant_paused_until=NOW).until is None


def test_a_paused_task():
    pause = Pause("task", "shop.charge", "ann", NOW - MINUTE)
    says = "task shop.charge is paused by ann since 2030-01-01 11:59:00 UTC (60s); to let it go on: headrace resume --task shop.charge"
    found = why(job(JobState.SCHEDULED, note=f"{PUT_OFF} by ann"), FREE, around=Around(pause=pause))
    assert (found.reason, str(found)) == (Reason.PAUSED, f"{says}; looked at again 2030-01-01 12:05:00 UTC (in 5m)")
    found = why(job(), FREE, around=Around(pause=pause))
    assert (found.reason, str(found)) == (Reason.PAUSED, says)
    found = why(job(JobState.SCHEDULED, note=f"{PUT_OFF} by ann"), FREE)
    assert str(found).startswith("task shop.charge was paused; looked at again 2030-01-01 12:05:00 UTC")


# ── looking ──────────────────────────────────────────────────────────────────


class Moving:
    """A store in which the job comes back between two looks."""

    def __init__(self, *states: JobState | None) -> None:
        self._states = list(states)

    def _next(self) -> JobState | None:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    async def now(self) -> datetime:
        return NOW

    async def get(self, ids: Any) -> list[Job | None]:
        state = self._next()
        return [None if state is None else job(state)]

    async def workers(self) -> list[Presence]:
        return [FREE]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        return Ahead(lane=4, limit=limit) if self._next() is JobState.READY else None

    async def pauses(self) -> list[Pause]:
        return []

    async def limits(self) -> dict[str, LimitRule]:
        return {}

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return [None for _ in ids]

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        return Links()

    async def lanes(self, queues: Any, limit: int = 1000) -> list[LaneView]:
        return []


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([JobState.READY], Reason.BEHIND),
        ([JobState.RUNNING, JobState.READY], Reason.BEHIND),
        ([JobState.READY, JobState.RUNNING], Reason.RUNNING),
        ([JobState.READY, JobState.DONE], Reason.DONE),
        ([JobState.RUNNING, JobState.READY, JobState.RUNNING], Reason.NEXT),
    ],
)
async def test_a_job_that_moves_while_it_is_looked_at(states: list[JobState], reason: Reason):
    found = await look(Moving(*states), ID, lambda _: None)
    assert found is not None
    assert found[1].reason is reason


async def test_no_job_no_explanation():
    assert await look(Moving(None), ID, lambda _: None) is None
