"""Detach: one job of a lease into a lease of its own."""

from __future__ import annotations

from contextlib import suppress

from headrace.model.lease import Token
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.verbs.settle import Settle


class Detach:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, leases: LeaseHomes, settle: Settle) -> None:
        self._client, self._time, self._leases, self._settle = client, time, leases, settle

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        # A repeated call may find the job moved already, under the fresh token.
        homes = self._leases.known.get(token) or list(await self._leases.holders([token, fresh]))
        round = self._client.round()
        detached = False
        for queue in homes:
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                args = (self._time.given, token.hex, position, fresh.hex)
                detached = bool(await self._client.run(scripts.DETACH, queue, *args))
            if detached:
                self._leases.known[fresh] = (queue,)
                if len(homes) > 1:
                    # The job is detached. If this fails, the settle of the last part ends the lease, or it runs out.
                    with suppress(*ONE_NODE):
                        await self._settle.end_if_over(token, await self._settle.states(token, homes))
                return True
        round.end(needs_all=True)
        return False
