"""Wait and claim in one trip: the server claims for a sleeper in the moment in which it wakes it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from headrace.errors import HeadraceError
from headrace.model.lease import MAX_LEASE, Ask, Lease
from headrace.model.outcome import Again
from headrace.store.redis import scripts
from headrace.store.redis.connection import Reply
from headrace.store.redis.parcel import bands_of
from headrace.store.redis.verbs.pauses import Holding

_log: Final = logging.getLogger(__name__)


class Waking(Holding):
    """See the contract."""

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        queues, limit = self._in_turn(ask.queues), min(ask.limit, MAX_LEASE)
        narrow = ask.only_bands or ask.tenant is not None or not self._pauses.keys().isdisjoint(queues)
        if narrow or limit <= 0 or not queues or timeout <= 0 or (self._keys.clustered and len(queues) > 1):
            return await self.wait(ask.queues, timeout)
        if (await self._until(timeout))[1]:
            return await self.wait(ask.queues, timeout)
        taken, answer = await self._wire.wait_and_run(
            [self._keys.marker(queue) for queue in queues],
            timeout,
            scripts.CLAIM,
            self._keys.of(*queues),
            *self._claim_args(ask, limit, queues, bands_of(ask, limit)),
            unheard=partial(self._give_up, ask, queues),
        )
        if answer is None:
            # The usual claim finds out why, and mends it.
            self._took(taken)
        else:
            self._opens_us = None
            if parts := self._told(answer)[1]:
                return self._leased(ask, [(queues[part[0]], part) for part in parts])
        return bool(taken)

    async def _give_up(self, ask: Ask, queues: list[str], answer: Reply) -> None:
        """Whoever asked has been called off meanwhile: these jobs are somebody else's."""
        _, *parts = answer
        if not parts:
            return
        lease = self._leased(ask, [(queues[part[0]], part) for part in parts])
        back = [(at, Again(job.failures, job.crashes, suspect=lease.suspect)) for at, job in enumerate(lease.jobs)]
        try:
            await self.settle(lease.token, back)
        except HeadraceError as error:
            _log.warning("%d jobs wait for their lease to expire, for they cannot be given back: %s", len(back), error)
