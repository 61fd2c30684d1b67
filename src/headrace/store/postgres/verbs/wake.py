"""WAIT TO CLAIM: one object hears the hints and claims, so that no second claim has to make sure that none was missed."""

from __future__ import annotations

import asyncio
import logging

from headrace.errors import HeadraceError
from headrace.model.lease import Ask, Lease
from headrace.model.outcome import Again
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.claim import Claims
from headrace.store.postgres.verbs.follow import Follow
from headrace.store.postgres.verbs.settle import settle

_log = logging.getLogger("headrace.store")


class Wake:
    """See `contract.Prompt`.

    The hints of this store object are counted from before its claims, so a claim that left nothing is followed by a claim
    only after a hint. A hint that is about the job of another worker costs one claim, and the sleep goes on.
    """

    def __init__(self, server: Server, leases: LeaseMemory, claims: Claims, follow: Follow) -> None:
        self._server, self._leases, self._claims, self._follow = server, leases, claims, follow

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        bell = self._server.bell
        until = asyncio.get_running_loop().time() + timeout
        with bell.hearing(ask.queues) as hint:
            woken = not self._claims.has_left_nothing(ask)
            while True:
                in_time = woken or await bell.until(hint, until)
                hint.clear()
                if (lease := await self._claim(ask)) is not None:
                    return lease
                if not in_time:
                    return False
                woken = False

    async def _claim(self, ask: Ask) -> Lease | None:
        claiming = asyncio.ensure_future(self._claims.claim(ask))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await self._give_up(claiming)
            raise

    async def _give_up(self, claiming: asyncio.Future[Lease | None]) -> None:
        """The caller was cancelled before the answer came: release the jobs for other workers."""
        try:
            lease = await claiming
            if lease is not None:
                back = [
                    (at, Again(job.failures, job.crashes, suspect=lease.suspect)) for at, job in enumerate(lease.jobs)
                ]
                await settle(self._server, self._leases, self._claims, self._follow, lease.token, back)
        except HeadraceError as error:
            _log.warning("jobs may wait for their lease to expire, because they cannot be released: %s", error)
