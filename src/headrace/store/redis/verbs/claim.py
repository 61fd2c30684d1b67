"""Claim: jobs of one server in one script, of a cluster queue by queue."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.model.lease import MAX_LEASE, Ask, Lease
from headrace.store.redis.arguments import bands_of
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.rows import lease_of
from headrace.store.redis.verbs.claim_cluster import ClusterClaim
from headrace.store.redis.verbs.claim_script import ClaimScript
from headrace.store.redis.verbs.wait import Wait


class Claim:
    """See the contract."""

    def __init__(
        self,
        client: Client,
        queues: QueueList,
        leases: LeaseHomes,
        waiting: Wait,
        script: ClaimScript,
        cluster: ClusterClaim,
    ) -> None:
        self._clustered = client.keys.clustered
        self._queues, self._leases, self._waiting = queues, leases, waiting
        self._script, self._cluster = script, cluster
        self._turn = 0

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        queues = self.in_turn(ask.queues)
        self._waiting.opens_us = None
        if limit <= 0 or not queues:
            return None
        parts: list[tuple[str, Reply]]
        if self._clustered:
            self._queues.known.update(queues)
        if self._clustered and len(queues) > 1:
            parts = await self._cluster.claim(ask, limit, queues)
        else:
            answer = await self._script.run(ask, limit, queues, bands_of(ask, limit))
            parts = [(queues[part[0]], part) for part in answer]
        return self.leased(ask, parts) if parts else None

    def in_turn(self, queues: Sequence[str]) -> list[str]:
        """Queues of one priority take turns."""
        names = list(dict.fromkeys(queues))
        if len(names) > 1:
            self._turn += 1
            at = self._turn % len(names)
            names = names[at:] + names[:at]
        return names

    def leased(self, ask: Ask, parts: list[tuple[str, Reply]]) -> Lease:
        """The lease that these parts make. Its queues are remembered."""
        lease = lease_of(ask.token, parts)
        self._leases.remember(lease, [queue for queue, _ in parts])
        return replace(lease, cut=True) if self._script.cut else lease
