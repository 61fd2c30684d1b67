"""How much of everything a run does: full, quick, or scaled to a number of jobs."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Counts per repeat, and how long a workload may go on repeating."""

    single: int = 500
    """Sequential enqueues of one job."""
    jobs: int = 100_000
    """Bulk enqueue, drain, together."""
    pickups: int = 300
    backlog: int = 1_000_000
    claims: int = 500
    """Claims timed with the backlog, and with 1,000 waiting."""
    one_shots: int = 20
    """Scripts that enqueue one job and end."""
    trickled: int = 2000
    """Jobs that come one by one at a steady rate."""
    large: int = 200
    """Megabytes of jobs with a large payload."""
    idle: float = 10.0
    """Seconds for which an idle worker is measured."""
    held: int = 500_000
    """Jobs that pass while a transaction is held open."""
    repeats: int = 3
    budget: float = 45.0
    """Seconds after which a workload starts no further repeat."""
    observed_seconds: float = 4.0
    """`--observed`: seconds that one run takes, about. 0: a run has `jobs` jobs."""
    rounds: int = 9
    """`--observed`: rounds in which each way to observe has one run. The differences are small, so there are many."""
    observed_budget: float = 300.0
    """`--observed`: seconds after which no further round begins."""
    blocked: int = 1_000_000
    """`--workflows`: jobs that wait for one job, and members of one group."""
    settles: int = 500
    """`--workflows`: settlements of one job each, by each of eight members."""
    chains: int = 1000
    suspended: int = 100_000
    """`--workflows`: jobs that wait for an event."""
    workflow_rounds: int = 5
    workflow_budget: float = 600.0
    """`--workflows`: seconds after which no further round begins."""


FULL = Plan()
QUICK = Plan(
    single=200,
    jobs=20_000,
    pickups=60,
    backlog=200_000,
    claims=200,
    one_shots=5,
    trickled=500,
    large=20,
    idle=3.0,
    held=60_000,
    repeats=3,
    budget=5.0,
    observed_seconds=1.5,
    rounds=5,
    observed_budget=45.0,
    blocked=100_000,
    settles=100,
    chains=1000,
    suspended=2000,
    workflow_rounds=3,
    workflow_budget=60.0,
)


def make(*, quick: bool, jobs: int | None) -> Plan:
    """The plan that was asked for; `jobs` scales everything to it."""
    plan = QUICK if quick else FULL
    if jobs is None:
        return plan
    return msgspec.structs.replace(
        plan,
        single=min(plan.single, jobs),
        jobs=jobs,
        pickups=min(plan.pickups, jobs),
        backlog=min(plan.backlog, 10 * jobs),
        claims=min(plan.claims, jobs),
        one_shots=min(plan.one_shots, jobs),
        trickled=min(plan.trickled, jobs),
        large=max(1, min(plan.large, jobs // 1000)),
        idle=min(plan.idle, max(0.5, jobs / 1000)),
        held=min(plan.held, 5 * jobs),
        # So few jobs are only for a trial, so they are not repeated.
        repeats=1 if jobs <= 1000 else plan.repeats,
        observed_seconds=0.0,
        rounds=1 if jobs <= 1000 else plan.rounds,
        blocked=min(plan.blocked, 10 * jobs),
        settles=min(plan.settles, jobs),
        chains=min(plan.chains, max(1, jobs // 100)),
        suspended=min(plan.suspended, jobs),
        workflow_rounds=1 if jobs <= 1000 else plan.workflow_rounds,
    )
