"""Which scope each verb of the http store needs, and what it does in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.model.scope import Scope
from headrace.server.auth import Principal


@dataclass(frozen=True, slots=True)
class VerbRule:
    """One verb."""

    does: str
    scope: Scope
    also: tuple[Scope, ...] = ()
    looks: int = 0
    """As `Endpoint.looks`: a read counts the same in both APIs."""
    free: Callable[[frozenset[Scope]], bool] = lambda _: False
    """Scopes under which it is not counted, because many workers with one token call some of these every second."""
    long: bool = False
    """As `Endpoint.long`."""

    def counts(self, principal: Principal) -> bool:
        """Whether this call counts as a read of the caller."""
        return self.looks > 0 and not self.free(principal.scopes)


def _works(scopes: frozenset[Scope]) -> bool:
    return Scope.WORK in scopes


def _only_works(scopes: frozenset[Scope]) -> bool:
    return Scope.WORK in scopes and Scope.READ not in scopes


_ANY = (Scope.ENQUEUE, Scope.READ, Scope.OPERATE)
RULES: dict[str, VerbRule] = {
    "hello": VerbRule("The version of this wire.", Scope.WORK, _ANY),
    "check": VerbRule("Findings about the store for an operator.", Scope.READ, looks=1, long=True),
    "now": VerbRule("The store's clock.", Scope.WORK, _ANY),
    "enqueue": VerbRule("Store a batch of jobs.", Scope.ENQUEUE, (Scope.WORK,)),
    "claim": VerbRule("Take jobs under a lease.", Scope.WORK),
    "heartbeat": VerbRule("Renew leases.", Scope.WORK),
    "settle": VerbRule("Apply settlements.", Scope.WORK),
    "report": VerbRule("Write the reports of running tasks.", Scope.WORK),
    "wait": VerbRule("Sleep until there may be something to claim.", Scope.WORK),
    "promote": VerbRule("Make due jobs ready.", Scope.WORK),
    "reap": VerbRule("Take over expired leases.", Scope.WORK),
    "abandon": VerbRule("Expire a dead worker's leases.", Scope.WORK),
    "retire": VerbRule("Forget a worker's presence.", Scope.WORK),
    "prune": VerbRule("Drop done and cancelled jobs past retention.", Scope.WORK, (Scope.OPERATE,)),
    "expired_dead": VerbRule("Dead letters past retention.", Scope.WORK, (Scope.OPERATE,)),
    "get": VerbRule("Jobs by id.", Scope.READ, (Scope.ENQUEUE,)),
    "find": VerbRule("Jobs by filter.", Scope.READ, looks=1, long=True),
    "stats": VerbRule("The figures of every queue.", Scope.READ, (Scope.WORK,), looks=1, free=_only_works),
    "workers": VerbRule("Workers seen within the last minute.", Scope.READ, looks=1),
    "ended": VerbRule("Jobs that ended since.", Scope.READ, looks=1, long=True),
    "lanes": VerbRule("Lanes that have ready jobs.", Scope.READ, (Scope.WORK,), looks=1, free=_works, long=True),
    "ahead": VerbRule("What a job waits behind.", Scope.READ, long=True),
    "cancel": VerbRule("Cancel jobs.", Scope.OPERATE),
    "retry": VerbRule("Make finished or scheduled jobs ready.", Scope.OPERATE),
    "delete": VerbRule("Forget jobs.", Scope.OPERATE),
    "drop": VerbRule("Forget dead letters, with a line in the log for each.", Scope.OPERATE),
    "pause": VerbRule("Pause a queue, a tenant or a task.", Scope.OPERATE),
    "resume": VerbRule("Undo a pause.", Scope.OPERATE),
    "pauses": VerbRule("All pauses.", Scope.READ, (Scope.WORK,), looks=1, free=_works),
    "limits": VerbRule("Every limit's rule.", Scope.READ, (Scope.WORK,), looks=1, free=_works),
    "limit": VerbRule("Write a limit's rule.", Scope.WORK, (Scope.OPERATE,)),
    "records": VerbRule(
        "Small named values of other components.", Scope.WORK, (Scope.READ, Scope.OPERATE), looks=1, free=_works
    ),
    "record": VerbRule("Write a small named value.", Scope.WORK, (Scope.OPERATE,)),
    "detach": VerbRule("Move a job into a lease of its own.", Scope.WORK),
    "add_history": VerbRule("Add rollups of ended attempts.", Scope.WORK),
    "read_history": VerbRule("Rollups of ended attempts.", Scope.READ, looks=1, long=True),
    "add_steps": VerbRule("Write finished steps of running tasks.", Scope.WORK),
    "read_steps": VerbRule("The finished steps of a job.", Scope.WORK, (Scope.READ,)),
    "signal": VerbRule("Signal an event.", Scope.ENQUEUE, (Scope.WORK, Scope.OPERATE)),
    "gates": VerbRule("Gates by id.", Scope.READ, (Scope.WORK, Scope.ENQUEUE)),
    "groups": VerbRule("Groups of jobs, newest first.", Scope.READ, (Scope.WORK,), looks=1),
    "links": VerbRule("What hangs together with a job or a gate.", Scope.READ, (Scope.WORK, Scope.ENQUEUE)),
    "fold_history": VerbRule("Replace rollups by fewer.", Scope.OPERATE),
}
