r"""Where things are in Redis: the names of all keys, once.

Everything of a queue begins with `hr:{queue}:` (`?prefix=` in the URL replaces `hr`), so all of it lies in one
hash slot and one script can change it at once. A *lane* is `priority|tenant|limits`, `limits` being the hash of the
limit keys in hexadecimal, or nothing. An *element* is a job, whole (see `element.py`). A job's *place* is its number in its
lane, given once at enqueue and kept for life.

    ready     L:<lane>  LIST   elements in the order of their enqueue calls; '' where one was cancelled or deleted
              h         HASH   lane → place of the first element of its list; a list that begins anew goes on counting
                               from all that the queue ever took, so places only grow and an idle lane leaves nothing
              B:<lane>  ZSET   place → id: jobs that came back (released, promoted, retried); merged by place at claim
              b         SET    lanes that have a B
              R:<prio>  LIST   ring of tenants that have work: the tenant's lane, or `priority|tenant|*` for several lanes
              T:<prio>|<tenant> LIST  ring of that tenant's lanes;   S  SET  tenants that have one
              P         ZSET   priorities that have a ring, highest first
              o         HASH   priority → what the first tenant of its ring is still owed of its turn
              w         LIST   one marker while there may be something to claim: `wait` blocks on it
    put off   D         ZSET   run_at → id
              E         HASH   id → place, lane, note and element of jobs in D or in a B
    running   Z         ZSET   expiry → number of the lease
              t         HASH   token → number of the lease, the fence; `m` after it where the lease spans queues
              l:<no>    LIST   header, then the claimed elements by position; '' where a job left
              s:<no>    STRING log of when which positions were settled; only of leases settled in parts
              c         ZSET   by lane and place: in which lease's list each run of claimed jobs is
              v         HASH   id → the same for jobs that had come back before
              q         HASH   lease:index → reason: running jobs that shall stop
              y         LIST   the last 10,000 tokens settled to the end: a settle repeated after a lost answer
              p         STRING since when and by whom the queue is paused
    finished  F         ZSET   finished at → lease: **the list of a settled lease is the history of its jobs**; nothing
                               is written per job when it is done
              g:<no>    HASH   position → time to live and result, where there is one
              k         HASH   id → dead and cancelled jobs, and done ones of leases of a few, each by itself
              kd kc     ZSET   finished at → id: dead ones, other ones;   ki  ZSET  ids of dead and cancelled ones in order
              e         HASH   id → every failure of the job
    index     X         ZSET   one member per enqueue call: batch and where its runs of jobs began (in the order of ids)
              n         HASH   batch → jobs of it that are gone;   nx  SET  batches to forget at the next prune
              d         HASH   counters: e enqueued, r ready, u running, o done, f failed, l leases, n ever delayed

Outside the queues: `hr:queues` SET of names, `hr:workers` HASH of who is there, `hr:{#records}:r:<kind>` HASH of
name → version and value with `hr:{#records}:d` HASH the last version given out (no queue's name has a `#`), `hr:i:<task>\0<key>` STRING per
idempotency key with its own expiry (on a cluster `hr:{queue}:i:…`: a key then counts within its queue).

A script names two keys of a queue: its prefix, which never exists, and its counters, which always do. On a cluster
that moves the slot key by key, a call that names an existing and a missing key is answered TRYAGAIN until the slot has
moved whole: so no script ever sees half a queue, and the store never follows an ASK.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The names that Python uses; scripts make the others from the queue's prefix."""

    prefix: str
    clustered: bool

    @property
    def queues(self) -> str:
        return f"{self.prefix}:queues"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"

    def queue(self, queue: str) -> str:
        """What every key of a queue begins with."""
        return f"{self.prefix}:{{{queue}}}:"

    def of(self, queue: str) -> tuple[str, str]:
        """The two keys that a script names."""
        prefix = self.queue(queue)
        return prefix, prefix + "d"

    @property
    def records(self) -> tuple[str, str]:
        """The two keys that the records' script names; each kind is a hash beside them."""
        return self.of("#records")

    def marker(self, queue: str) -> str:
        return self.queue(queue) + "w"

    def paused(self, queue: str) -> str:
        return self.queue(queue) + "p"

    def leases(self, queue: str) -> str:
        return self.queue(queue) + "Z"

    def idempotency(self, queue: str, task: str, name: str) -> str:
        place = self.queue(queue) if self.clustered else f"{self.prefix}:"
        return f"{place}i:{task}\0{name}"
