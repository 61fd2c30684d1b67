"""The Redis store: the contract on lists, sorted sets and one script per verb. See `keys.py` for what lies where."""

from __future__ import annotations

import logging

from headrace.store.redis import health
from headrace.store.redis.faults import Cut, translated
from headrace.store.redis.holding import Holding
from headrace.store.terms import Finding, Progress

_log = logging.getLogger(__name__)
_told: set[str] = set()
"""Warnings given: once per process, however many stores it opens."""


class RedisStore(Holding):
    """Redis 7.0 or newer, or Valkey: one server, Sentinel or a cluster."""

    async def open(self) -> None:
        for each in await self._examine():
            health.refuse(each, self._address)
            for finding in health.findings(each, self._address):
                if finding.level != "ok" and finding.message not in _told:
                    _told.add(finding.message)
                    _log.warning("%s: %s", finding.about, finding.message)
        await self._refresh()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Redis has no schema: a script carries its version in its digest, and a layout that changes takes a new prefix."""
        del progress
        return []

    async def check(self) -> list[Finding]:
        found: list[Finding] = []
        for each in await self._examine():
            health.refuse(each, self._address)
            found += health.findings(each, self._address)
        return found

    async def _examine(self) -> list[health.Health]:
        try:
            pools = await self._wire.all_pools()
        except (Cut, Exception) as error:
            raise translated(error, self._address.shown) from error
        return [await health.examine(pool) for pool in pools]
