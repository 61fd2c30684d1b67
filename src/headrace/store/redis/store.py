"""The Redis store: the contract on lists, sorted sets and one script per verb. See `keys.py` for what lies where."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from headrace.model.clock import Clock
from headrace.model.records import Finding, Progress
from headrace.store.journal import answer_apart
from headrace.store.redis.blocking import BlockingEnqueue, blocking
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.url import parse
from headrace.store.redis.gate_homes import GateHomes
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.older_workers import OlderWorkers
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling
from headrace.store.redis.verbs.check import Check
from headrace.store.redis.verbs.claim import Claim
from headrace.store.redis.verbs.claim_cluster import ClusterClaim
from headrace.store.redis.verbs.claim_script import ClaimScript
from headrace.store.redis.verbs.detach import Detach
from headrace.store.redis.verbs.enqueue import Enqueue
from headrace.store.redis.verbs.enqueue_links import LinkedEnqueue
from headrace.store.redis.verbs.find import Find
from headrace.store.redis.verbs.gates import Gates
from headrace.store.redis.verbs.heartbeat import Heartbeat
from headrace.store.redis.verbs.history import History
from headrace.store.redis.verbs.limits import Limits
from headrace.store.redis.verbs.looks import Looks
from headrace.store.redis.verbs.moves import Moves
from headrace.store.redis.verbs.pauses import Pauses
from headrace.store.redis.verbs.reap import Reap
from headrace.store.redis.verbs.records import Records
from headrace.store.redis.verbs.report import Reports
from headrace.store.redis.verbs.settle import Settle
from headrace.store.redis.verbs.steps import Steps
from headrace.store.redis.verbs.upkeep import Upkeep
from headrace.store.redis.verbs.wait import Wait
from headrace.store.redis.verbs.wake import Wake

_log = logging.getLogger(__name__)


class RedisStore:
    """Redis 7.0 or newer, or Valkey: one server, Sentinel or a cluster.

    Each verb is answered by an object of `verbs/`. The constructor makes these objects and binds their methods once, so
    that a call of a verb costs no more than a call of the method itself. A subclass therefore replaces a verb in its own
    constructor: a method of the class is hidden by the bound one.
    """

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:  # noqa: PLR0915 - a line per verb
        self.remarks: Sequence[Finding] = ()
        # What the verbs share.
        self.client = client = Client(parse(url))
        self.time = time = StoreClock(client, clock)
        self.queues = queues = QueueList(client)
        self.leases = leases = LeaseHomes(client, queues)
        time.after_refresh(queues.relist)
        locator = JobLocator(client, queues)
        homes = GateHomes(client, queues)
        self.telling = telling = Telling(client, time, queues)

        # The verbs that others build on.
        self.waiting = waiting = Wait(client, time)
        self.claim_script = script = ClaimScript(client, time, waiting)
        self.looks = looks = Looks(client, time, queues, locator)
        self.finder = finder = Find(client, queues, looks)
        claim = Claim(client, queues, leases, waiting, script, ClusterClaim(client, time, leases, waiting, script))
        settle = Settle(client, time, leases, homes, telling)

        older = OlderWorkers(client, time)
        self.refuse_older = older.refuse_older
        self.check = Check(client, older).check
        self.now = time.now

        links = LinkedEnqueue(client, time, queues, locator, homes, telling, older)
        self.enqueuing = enqueuing = Enqueue(client, time, queues, locator, links)
        self.enqueue = enqueuing.enqueue
        self.claim = claim.claim
        self.heartbeat = Heartbeat(client, time, leases).heartbeat
        self.settle = settle.settle
        self.report = Reports(client, leases).report
        self.wait = waiting.wait
        self.repeat_hints = waiting.repeat_hints
        self.wait_to_claim = Wake(client, claim, script, waiting, settle).wait_to_claim
        self.detach = Detach(client, time, leases, settle).detach

        upkeep = Upkeep(client, time, queues, telling)
        self.promote = upkeep.promote
        self.hears = upkeep.hears
        self.wait_due = upkeep.wait_due
        self.prune = upkeep.prune
        self.expired_dead = upkeep.expired_dead
        reap = Reap(client, time, queues, leases, settle)
        self.reap = reap.reap
        self.abandon = reap.abandon
        self.retire = reap.retire

        self.get = looks.get
        self.find = finder.find
        self.stats = looks.stats
        self.workers = looks.workers
        self.ended = looks.ended
        self.lanes = looks.lanes
        self.ahead = looks.ahead

        moves = Moves(client, time, locator, telling)
        self.cancel = moves.cancel
        self.retry = moves.retry
        self.delete = moves.delete

        pauses = Pauses(client, time, queues)
        self.pause = pauses.pause
        self.resume = pauses.resume
        self.pauses = pauses.pauses
        limits = Limits(client, queues)
        self.limits = limits.limits
        self.limit = limits.limit
        records = Records(client)
        self.records = records.records
        self.record = records.record
        history = History(client)
        self.add_history = history.add_history
        self.read_history = history.read_history
        self.fold_history = history.fold_history
        steps = Steps(client, leases, locator)
        self.add_steps = steps.add_steps
        self.read_steps = steps.read_steps
        # On a cluster no script reaches a gate and a journal.
        self.answer_wait = partial(answer_apart, self) if client.keys.clustered else steps.answer_wait
        gates = Gates(client, time, queues, locator, homes, telling)
        self.signal = gates.signal
        self.gates = gates.gates
        self.groups = gates.groups
        self.links = gates.links

    async def open(self) -> None:
        findings = await self.check()
        for finding in findings:
            if finding.level == "error":
                _log.warning("%s: %s", finding.about, finding.message)
        self.remarks = [finding for finding in findings if finding.level == "warning"]
        await self.time.refresh()

    def blocking(self) -> BlockingEnqueue | None:
        return blocking(self.client.address, self.enqueuing)

    async def close(self) -> None:
        await self.waiting.close()
        await self.client.wire.close()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Redis has no schema: a script carries its version in its digest, and a new layout of keys takes a new prefix."""
        del progress
        return []
