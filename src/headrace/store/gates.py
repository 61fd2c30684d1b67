"""The verbs of gates, which are a part of the contract, and the rules that each store keeps about them.

* A gate is made by the `gates` of a batch or of an `Again`, or by `signal`. One that exists stays as it is.
* `Batch.edges` name members. The jobs of the same batch that were not stored, because they met a key or a unique lock, are no
  members. A client names each member of a gate once. An edge whose job is of another batch, or whose `first` is a gate, has one member, which may have ended
  already. `enqueue` raises GroupOver, and stores nothing, for an edge into a gate that is over, or that does not exist.
* The counts of a gate say how many of its members are done, dead and cancelled *now*. A member that is retried has not ended. A
  member that is deleted or dropped while it is done stays counted as done; else it counts as cancelled. A gate as a member is what
  `gate.as_member` says.
* A job with a `wait` is blocked, or released or cancelled, as `gate.verdict` says: when it is enqueued, and after each change of what
  it waits for. A job that is not stored any more is cancelled to those that wait for it. A `wait` for a job of the same
  batch that met a key or a lock is for the job that stands for it. A job waits only for jobs at earlier places of its batch, for
  stored ones, and for gates.
* A released job becomes ready, or scheduled if it has a due time: a delay counts from its release. A store may keep a run of jobs that
  wait for the same as a line of its own in their lane: such jobs go in their order, but in no certain order with other jobs of the lane. The
  tenant has one turn all the same. A job that comes back is before the jobs of its lane that were enqueued later and never waited.
* `Again.waits` suspends a job: it is blocked until `verdict` of the first of them is not WAIT, and then ready, whatever the
  verdict. With `due` it is ready at that time at the latest. It names gates only, never jobs. A suspended job holds nothing that a
  scheduled one does not hold, and takes its old place in its lane.
* What a settlement counts is durable with it. What follows from it (a release, a cancellation, a count on a further gate) may
  follow later: it has happened when `promote` has been called until it moved nothing. No end and no signal is missed,
  whatever happens at the same time.
* Everything is safe to repeat, and a refused settlement changes no count.
* `retry` leaves a blocked job alone. `cancel` and `delete` take it like a scheduled one. `ready`, `oldest_ready` and `max_length` do not
  count blocked jobs.
* `prune` drops a gate that is over or was signalled, that nothing waits for, and that has not changed for the retention of done jobs
  (a signalled one: for the time given to `signal`). It cancels what waits for a gate that was not sealed and has not changed for the
  retention of dead jobs, and drops that gate.
* `prune` keeps the members of a gate, jobs and gates alike, as long as the gate is stored. So a result is there when a job that
  waits for all of them runs, however long the others take. A gate that is not sealed, that nothing waits for, and that is no member of
  another one, does not keep its members: it may grow for ever. A store may keep other jobs with them that ended in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable
from uuid import UUID

from headrace.model.gate import Gate, GateId, Links, NewGate


class KeepsGates(Protocol):
    """A store keeps gates, their members, and the jobs that wait for them."""

    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        """End a gate that waits for a signal, durably, and make it if there is none. False: it was signalled before.

        The first value stays. It is kept for `keep`, and as long as something waits for the gate.
        """
        ...

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        """Gates by id, in the order asked, None where there is none."""
        ...

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        """Gates that have a label, newest id first, with ids below `before`; of one tenant, or of all."""
        ...

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        """What hangs together with a gate or a job: at most `limit` of each kind.

        `after`: only edges whose first member is above this id.
        """
        ...


@runtime_checkable
class Upgrading(Protocol):
    """Stores without a schema, which workers of an earlier version share with this one during an upgrade."""

    async def refuse_older(self, queues: Iterable[str]) -> None:
        """Raise Unsupported while a worker of a version that knows no gates and no steps serves one of these queues.

        `enqueue` calls it for a batch with links. Workers call it before the first step of a job. It looks at most once a minute.
        """
        ...
