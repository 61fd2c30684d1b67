"""The Redis store: the contract on lists, sorted sets and one script per verb. See `keys.py` for what lies where."""

from __future__ import annotations

import logging

from headrace.errors import StoreError
from headrace.model.records import Finding, Progress
from headrace.store.redis import health
from headrace.store.redis.asking import ONE_NODE, Patience
from headrace.store.redis.connection import Pool
from headrace.store.redis.faults import Cut, translated
from headrace.store.redis.verbs.wake import Waking

_log = logging.getLogger(__name__)
_told: set[str] = set()
"""Warnings given: once per process, however many stores it opens."""


class RedisStore(Waking):
    """Redis 7.0 or newer, or Valkey: one server, Sentinel or a cluster."""

    async def open(self) -> None:
        for finding in await self.check():
            if finding.level == "error" or (finding.level == "warning" and finding.message not in _told):
                _told.add(finding.message)
                _log.warning("%s: %s", finding.about, finding.message)
        await self._refresh()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Redis has no schema: a script carries its version in its digest, and a layout that changes takes a new prefix."""
        del progress
        return []

    async def check(self) -> list[Finding]:
        found: list[Finding] = []
        silent: list[StoreError] = []
        servers = await self._examine()
        for each in servers:
            try:
                if isinstance(each, StoreError):
                    raise each
                health.refuse(each, self._address)
            except ONE_NODE as error:
                # One node of a cluster: the others go on.
                silent.append(error)
                found.append(Finding("error", "server", f"{error}; its queues are unavailable until it answers"))
            else:
                found += health.findings(each, self._address)
        if len(silent) == len(servers):
            raise silent[0]
        return found

    async def _examine(self) -> list[health.Health | StoreError]:
        """Every server, as it describes itself, or why it does not."""
        patience = Patience()
        while True:
            try:
                pools = await self._wire.all_pools()
            except (Cut, Exception) as error:
                raise translated(error, self._address.shown) from error
            servers = [await _described(pool) for pool in pools]
            behind = any(isinstance(each, health.Health) and each.replica for each in servers)
            if not behind or self._address.kind == "single" or not await patience.left():
                return servers
            # Whoever told us of it has not heard of the failover yet.
            await self._wire.look_again()


async def _described(pool: Pool) -> health.Health | StoreError:
    try:
        return await health.examine(pool)
    except ONE_NODE as error:
        return error
