"""What a worker says when another one has taken over a lease."""

from __future__ import annotations

from headrace.policy.explain.sentences import count
from headrace.worker.service import log
from headrace.worker.state import HeldLease, WorkerState


def tell_lost(state: WorkerState, held: HeldLease) -> None:
    """Log it, and tell the listeners."""
    jobs = held.open + len(held.ended)
    log.warning(
        "lease lost: this worker drops %s, because another worker holds the lease now",
        count(jobs, "job"),
        extra={"event": "lease.lost", "lease": str(held.token), "jobs": jobs},
    )
    state.emit("lease.lost", token=held.token, jobs=jobs)
