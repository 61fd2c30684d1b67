"""Which scope each verb of the http store needs, and what it does in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.server.auth import Principal
from headrace.server.endpoint import Scope


@dataclass(frozen=True, slots=True)
class Rule:
    """One verb."""

    does: str
    scope: Scope
    also: tuple[Scope, ...] = ()
    looks: int = 0
    """As `Endpoint.looks`: the same look costs the same at both doors."""
    free: Callable[[frozenset[Scope]], bool] = lambda _: False
    """Under which scopes it is not counted: a fleet of workers that share a token asks for some of these every second."""
    long: bool = False
    """As `Endpoint.long`."""

    def counts(self, principal: Principal) -> bool:
        """Whether this call is a look of the caller's."""
        return self.looks > 0 and not self.free(principal.scopes)


def _works(scopes: frozenset[Scope]) -> bool:
    return Scope.WORK in scopes


def _only_works(scopes: frozenset[Scope]) -> bool:
    return Scope.WORK in scopes and Scope.READ not in scopes


_ANY = (Scope.ENQUEUE, Scope.READ, Scope.OPERATE)
RULES: dict[str, Rule] = {
    "hello": Rule("The version of this wire.", Scope.WORK, _ANY),
    "check": Rule("What a careful operator would look at.", Scope.READ, looks=1, long=True),
    "now": Rule("The store's clock.", Scope.WORK, _ANY),
    "enqueue": Rule("Store a batch of jobs.", Scope.ENQUEUE, (Scope.WORK,)),
    "claim": Rule("Take jobs under a lease.", Scope.WORK),
    "heartbeat": Rule("Renew leases.", Scope.WORK),
    "settle": Rule("Apply settlements.", Scope.WORK),
    "report": Rule("Write what running tasks say.", Scope.WORK),
    "wait": Rule("Sleep until there may be something to claim.", Scope.WORK),
    "promote": Rule("Make ready what is due.", Scope.WORK),
    "reap": Rule("Take over expired leases.", Scope.WORK),
    "abandon": Rule("Expire a dead worker's leases.", Scope.WORK),
    "retire": Rule("Forget a worker's presence.", Scope.WORK),
    "prune": Rule("Drop done and cancelled jobs past retention.", Scope.WORK, (Scope.OPERATE,)),
    "expired_dead": Rule("Dead letters past retention.", Scope.WORK, (Scope.OPERATE,)),
    "get": Rule("Jobs by id.", Scope.READ, (Scope.ENQUEUE,)),
    "find": Rule("Jobs by filter.", Scope.READ, looks=1, long=True),
    "stats": Rule("Every queue in figures.", Scope.READ, (Scope.WORK,), looks=1, free=_only_works),
    "workers": Rule("Workers seen within the last minute.", Scope.READ, looks=1),
    "ended": Rule("Jobs that ended since.", Scope.READ, looks=1, long=True),
    "lanes": Rule("Lanes that have ready jobs.", Scope.READ, (Scope.WORK,), looks=1, free=_works, long=True),
    "ahead": Rule("What a job waits behind.", Scope.READ, long=True),
    "cancel": Rule("Cancel jobs.", Scope.OPERATE),
    "retry": Rule("Make finished or scheduled jobs ready.", Scope.OPERATE),
    "delete": Rule("Forget jobs.", Scope.OPERATE),
    "drop": Rule("Forget dead letters, with a line in the log for each.", Scope.OPERATE),
    "pause": Rule("Pause a queue, a tenant or a task.", Scope.OPERATE),
    "resume": Rule("Undo a pause.", Scope.OPERATE),
    "pauses": Rule("Everything that is paused.", Scope.READ, (Scope.WORK,), looks=1, free=_works),
    "limits": Rule("Every limit's rule.", Scope.READ, (Scope.WORK,), looks=1, free=_works),
    "limit": Rule("Write a limit's rule.", Scope.WORK, (Scope.OPERATE,)),
    "records": Rule(
        "Small named values of other parts.", Scope.WORK, (Scope.READ, Scope.OPERATE), looks=1, free=_works
    ),
    "record": Rule("Write a small named value.", Scope.WORK, (Scope.OPERATE,)),
    "detach": Rule("Move a job into a lease of its own.", Scope.WORK),
}
