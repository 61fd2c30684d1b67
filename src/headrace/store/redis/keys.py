r"""Where things are in Redis: the names of all keys, once.

Everything of a queue begins with `hr:{queue}:` (`?prefix=` in the URL replaces `hr`), so all of it lies in one
hash slot and one script can change it at once. A *lane* is `priority|tenant|` and, where it has limit keys, `\1` and each
of them with a `\1` behind it: its name says all that a claim needs to know. An *element* is a job, whole (see `element.py`). A job's *place* is its number in its
lane, given once at enqueue and kept for life. Scripts call these keys by the names in `lua/names.lua`.

    ready     L:<lane>  LIST   elements in the order of their enqueue calls; '' where one was cancelled or deleted
              h         HASH   lane → place of the first element of its list; a list that begins anew goes on counting
                               from all that the queue ever took, so places only grow and an idle lane leaves nothing
              B:<lane>  ZSET   place → id: jobs that came back (released, promoted, retried); merged by place at claim
              b         SET    lanes that have a B
              x         HASH   lane → how many '' are in its list
              z         SET    lanes that were given large jobs since their lists began: a claim looks at the sizes of their jobs first
              R:<prio>  LIST   ring of tenants that have work: the tenant's lane, or `priority|tenant|*` for several lanes
              T:<prio>|<tenant> LIST  ring of that tenant's lanes;   S  SET  tenants that have one
              s         HASH   tenant → its lane with limit keys that has a place in a ring by itself
              K         HASH   lane, or `priority|tenant|*`, that may not be claimed now and is in no ring → the key it is parked
                               under; a lane that has work is in a ring or here, never in both
              P         ZSET   priorities that have a ring, highest first
              o         HASH   priority → the round under way in its ring: jobs in a turn, turns left, what the first is still owed
              w         LIST   one marker while there may be something to claim: `wait` blocks on it
              w:<random> LIST  a sleeper's own, to wake it when it is called off; gone at once. The one of the waits of a process
                               on one server is `hr:w:<random>`, and that of the waits for due times `hr:w:due:<random>`
    put off   D         ZSET   run_at → id
              E         HASH   id → place, lane, note and element of jobs in D or in a B
    blocked   U         HASH   id → what the job waits for (and from when on its delay counts), and place, lane, note and element
              C         HASH   closed lane → what its jobs wait for, and the first of them. Its elements are in its L, but it is in no ring.
                               Its name is that of their own lane, and \2, the need and 32 digits in it: in front of its limit keys, or
                               with another \2 behind it
              C:<lane>  ZSET   first id and last place of each run of jobs in a closed lane
              Q         HASH   first job of a chain → its last place, a place in its lane, and its lane
              Q:<job>   LIST   elements of the jobs of this chain that are blocked still. Those that go are in the L of their lane with `\2s`
                               in its name, where the digits of a closed lane are, and the place of each in that is in v, behind a `@`
              V         ZSET   a time by which it is ready at the latest → id: suspended jobs that have one
              N         HASH   batch → runs of its jobs and the gates on which their ends count, which of its jobs are awaited, and its chains;
                               while there is one, `t` has the field `links`, which tells settle to look
    running   Z         ZSET   expiry → number of the lease
              t         HASH   token → number of the lease, the fence; then `m` where the lease spans queues, `l` where it
                               holds units of limits: of which, the lanes in its header say
              l:<no>    LIST   header, then the claimed elements by position; '' where a job left
              s:<no>    STRING log of when which positions were settled; only of leases settled in parts
              c         ZSET   by lane and place: in which lease's list each run of claimed jobs is
              v         HASH   id → the same for jobs that had come back before
              q         HASH   lease:index → reason: running jobs that shall stop
              y         LIST   the last 10,000 tokens settled to the end: a settle repeated after a lost answer; y2  those
                               before the last turn: at prune, y becomes y2 every ten minutes, so tokens are gone after twenty
              j         HASH   id → what the job's task reported: progress, note, lines
              J         SET    ids of jobs that have steps
              J:<id>    HASH   name and number of a finished step → how many were there before it, and the step
              p         STRING since when, until when and by whom the queue is paused
    finished  F         ZSET   finished at → lease settled at once: **the list of a settled lease is the history of its jobs**;
                               nothing is written per job when it is done
              H         ZSET   the same of leases settled in parts, by their first time
              f         ZSET   settled at → lease and offset in its log: each step of those settled in parts
              g:<no>    HASH   position → time to live and result, where there is one; `d` and a time → positions of
                               those that are over by then
              G         ZSET   when the next results in a g are over → lease;   gk  the same → id, of results in k
              k         HASH   id → dead and cancelled jobs, and done ones of leases of a few, each by itself
              kd kc     ZSET   finished at → id: dead ones, other ones;   ki  ZSET  ids of dead and cancelled ones in order
              e         HASH   id → every failure of the job
    index     X         ZSET   one member per enqueue call: batch and where its runs of jobs began (in the order of ids)
              m         HASH   batch → its jobs that were not stored because of unique locks, and who held those
              n         HASH   batch → jobs of it that are gone;   nx  SET  batches to forget at the next prune
              d         HASH   counters: e enqueued, r ready, u running, o done, f failed, l leases, n ever delayed; y  when y
                               last became y2; b jobs in closed lanes and chains; s jobs of chains that were let go; with the gates: gates  how many there are; on a cluster also told and heard:<prefix>  the number of the last
                               word said to others, and taken from another queue; rules  the version of its copy of the rules, g  the mark of
                               a queue that is being forgotten (see leaving.py)

    limits    #r        HASH   name or key → rule            #u   HASH  key → units held by the jobs of living leases
              #b        HASH   key → units in its bucket, and when that was
              #k:<key>  ZSET   lanes parked under it, with their queues' prefixes, by priority and time; a paused tenant is the
                        key `\1tenant`, what needs more than there can ever be `\2key`
              #w        SET    keys with parked lanes        #q   SET   prefixes of queues with parked lanes
              #o        ZSET   keys with parked lanes by when they open; below 0: minus the lanes still to be tried now
    tenants   #t        HASH   tenant → its pause            #a   HASH  task → its pause
    unique    #l        HASH   task, NUL, name → the job that took the lock last, and its queue's prefix
    gates     #g:<gate> HASH   s size, o done, d dead, c cancelled, S sealed, h calls that hold it, t what it counts as a member, k the
                               set that prune finds it by, n waits for a signal, v its value, u kept until, x by which call, q queue, l
                               label, w tenant, m made at, a changed at
              #e:<gate> ZSET   first and last member of each edge, in the order of ids
              #y:<id>   ZSET   of a gate or a job: need, id and queue's prefix of each job that waits for it; of each closed lane the need
                               as a capital letter, the id of its first job, its queue's prefix and its name
              N         HASH   gate → the gates on which its end counts (on a cluster in the same hash as batches)
              #c        LIST   gates and jobs that have changed and whose followers have not been looked at
              #n #n:<tenant> ZSET  gates that have a label, in the order of ids
              #go #gu   ZSET   changed at → gate that is over, that is not sealed;   #gs  ZSET  kept until → gate that was signalled
              #f:<prefix> LIST on a cluster the words that another queue is to be told, numbered;   #f  SET  prefixes of such queues
    queues    #d        ZSET   prefix of a queue → a time that none of its scheduled jobs is due before
              #z        ZSET   prefix of a queue → a time that none of its leases runs out before
              #m        LIST   one marker, for a minute, after the first due time of all queues has become an earlier one, or leases
                               were abandoned: `wait_due` blocks on it
              #p        HASH   queue → its pause, as in `p`
              #s        HASH   queue that was forgotten because it had no jobs → its counters

Of the last group `#s` exists on every kind of server, the others on one server only. There it lies with the four before it: those lie under `hr:{#limits}:` for all queues of a server (no queue's name has a `#`), and scripts name that
prefix as their last key: a limit counts over all queues. On a cluster no script reaches two slots, so they lie under the
prefix of each queue and count within it; rules and pauses are kept under `hr:{#limits}:`, too, and copied from there to every
queue when they change or a queue appears.

Outside the queues: `hr:queues` SET of names, `hr:workers` HASH of the workers that are there, `hr:{hr:workers}:upkeep:<group>` ZSET
of those that do the upkeep of their group, by until when, `hr:name:<id>` STRING per
worker that was ever there, its name, with an expiry, `hr:{#records}:r:<kind>` HASH of
name → version and value with `hr:{#records}:d` HASH the last version given out, `hr:{#history}:a` ZSET of the keys of rollups (start and id as
text, all with the score 0, so that their order is that of the keys) with `hr:{#history}:av` HASH key → rollup and
`hr:{#history}:d` HASH how often rollups were folded, `hr:i:<task>\0<key>` STRING per
idempotency key with its own expiry (on a cluster `hr:{queue}:i:…`: a key then counts within its queue).

A script names two keys of a queue: its prefix, which never exists, and its counters, which always do. On a cluster
that moves the slot key by key, a call that names an existing and a missing key is answered TRYAGAIN until the slot has
moved whole: so no script ever sees half a queue, and the store never follows an ASK.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

LIMITS: Final = "#limits"


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

    def upkeep(self, group: str) -> str:
        """ZSET until when → worker that does the upkeep of its group; in one slot with the workers."""
        return f"{self.prefix}:{{{self.workers}}}:upkeep:{group}"

    @property
    def listing(self) -> tuple[str, str]:
        """The list of queues, and in the same slot HASH queue → mark of those that leave it, on a cluster only."""
        return self.queues, f"{self.prefix}:{{{self.queues}}}:leaving"

    def name(self, worker: UUID) -> str:
        """Of a worker's name, which outlives its presence."""
        return f"{self.prefix}:name:{worker.hex}"

    @property
    def shards(self) -> str:
        """HASH queue → the number of its shards; those but the first are queues `name#1` … (see `shards.py`)."""
        return f"{self.prefix}:shards"

    def queue(self, queue: str) -> str:
        """What every key of a queue begins with."""
        return f"{self.prefix}:{{{queue}}}:"

    def pair(self, queue: str) -> tuple[str, str]:
        """The two keys of a queue that a script names."""
        prefix = self.queue(queue)
        return prefix, prefix + "d"

    def of(self, *queues: str) -> tuple[str, ...]:
        """The keys that a script names: two of each queue, and where the limits are if not with the queue."""
        return _known_keys_of(self, queues) if len(queues) == 1 else _keys_of(self, queues)

    @property
    def records(self) -> tuple[str, str]:
        """The two keys that the records' script names; each kind is a hash beside them."""
        return self.pair("#records")

    @property
    def history(self) -> tuple[str, str]:
        """The two keys that the scripts of history name."""
        return self.pair("#history")

    @property
    def home(self) -> tuple[str]:
        """What a script names that is about all queues of one server: the home of limits, where their indexes are."""
        return (self.queue(LIMITS),)

    def named(self, prefix: str) -> str:
        """The queue of a prefix."""
        return prefix[len(self.prefix) + 2 : -2]

    @property
    def limits(self) -> tuple[str, str]:
        """The home of limits, pauses and unique locks, or on a cluster of what the queues have copies of."""
        return self.pair(LIMITS)

    def marker(self, queue: str) -> str:
        return self.queue(queue) + "w"

    @property
    def due_marker(self) -> str:
        return self.home[0] + "#m"

    def paused(self, queue: str) -> str:
        return self.queue(queue) + "p"

    def leases(self, queue: str) -> str:
        return self.queue(queue) + "Z"

    def lease(self, queue: str, number: int) -> str:
        return f"{self.queue(queue)}l:{number}"

    def idempotency(self, queue: str, task: str, name: str) -> str:
        place = self.queue(queue) if self.clustered else f"{self.prefix}:"
        return f"{place}i:{task}\0{name}"


def _keys_of(keys: Keys, queues: tuple[str, ...]) -> tuple[str, ...]:
    pairs = tuple(key for queue in queues for key in keys.pair(queue))
    return pairs if keys.clustered else (*pairs, keys.queue(LIMITS))


# Most calls are about one queue of few, and a single enqueue is short enough to notice the making of names.
_known_keys_of = lru_cache(1000)(_keys_of)
