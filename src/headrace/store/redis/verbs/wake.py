"""Wait and claim in one trip: the server claims for a sleeper in the moment in which it wakes it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from headrace.errors import HeadraceError
from headrace.model.lease import MAX_LEASE, Ask, Lease
from headrace.model.outcome import Again
from headrace.store.redis.arguments import bands_of
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.verbs.claim import Claim
from headrace.store.redis.verbs.claim_script import ClaimScript
from headrace.store.redis.verbs.settle import Settle
from headrace.store.redis.verbs.wait import Wait

_log: Final = logging.getLogger(__name__)


class Wake:
    """See the contract."""

    def __init__(self, client: Client, claim: Claim, script: ClaimScript, waiting: Wait, settle: Settle) -> None:
        self._wire, self._keys = client.wire, client.keys
        self._claim, self._script, self._waiting, self._settle = claim, script, waiting, settle

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        queues, limit = self._claim.in_turn(ask.queues), min(ask.limit, MAX_LEASE)
        if limit <= 0 or not queues or timeout <= 0:
            return await self._waiting.wait(ask.queues, timeout)
        narrow = ask.only_bands or ask.tenant is not None or not self._waiting.pauses.keys().isdisjoint(queues)
        apart = self._keys.clustered and len(queues) > 1
        if narrow or apart or (await self._waiting.until(timeout))[1]:
            await self._waiting.wait(ask.queues, timeout)
            return True
        taken, answer = await self._wire.wait_and_run(
            [self._keys.marker(queue) for queue in queues],
            timeout,
            scripts.CLAIM,
            self._keys.of(*queues),
            *self._script.args(ask, limit, queues, bands_of(ask, limit)),
            unheard=partial(self._give_up, ask, queues),
        )
        if answer is None:
            # The server refused the script. A plain claim finds out why, and repairs it.
            self._waiting.took(taken)
            return True
        self._waiting.opens_us = None
        if parts := self._script.read(answer)[1]:
            return self._claim.leased(ask, [(queues[part[0]], part) for part in parts])
        return bool(taken)

    async def _give_up(self, ask: Ask, queues: list[str], answer: Reply) -> None:
        """The caller was cancelled before the answer came: release the jobs for other workers."""
        _, *parts = answer
        if not parts:
            return
        lease = self._claim.leased(ask, [(queues[part[0]], part) for part in parts])
        back = [(at, Again(job.failures, job.crashes, suspect=lease.suspect)) for at, job in enumerate(lease.jobs)]
        try:
            await self._settle.settle(lease.token, back)
        except HeadraceError as error:
            _log.warning(
                "%d jobs wait for their lease to expire, because they cannot be released: %s", len(back), error
            )
