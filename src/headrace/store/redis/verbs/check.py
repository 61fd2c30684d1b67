"""Check: what the servers say of themselves, and what of it an operator should know."""

from __future__ import annotations

from contextlib import suppress

from headrace.errors import StoreError
from headrace.model.records import Finding
from headrace.store.redis.client import health
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Pool
from headrace.store.redis.client.faults import Cut, translated
from headrace.store.redis.client.wire import ONE_NODE, Patience
from headrace.store.redis.older_workers import OlderWorkers


class Check:
    """See the contract."""

    def __init__(self, client: Client, older: OlderWorkers) -> None:
        self._wire, self._address, self._older = client.wire, client.address, older

    async def check(self) -> list[Finding]:
        findings: list[Finding] = []
        silent: list[StoreError] = []
        servers = await self._examine()
        for server in servers:
            try:
                if isinstance(server, StoreError):
                    raise server
                health.refuse(server, self._address)
            except ONE_NODE as error:
                # The other nodes of a cluster go on without this one.
                silent.append(error)
                findings.append(Finding("error", "server", f"{error}; its queues are unavailable until it answers"))
            else:
                findings += health.findings(server, self._address)
        if len(silent) == len(servers):
            raise silent[0]
        with suppress(*ONE_NODE):  # That node has a finding of its own.
            findings += await self._older.findings()
        return findings

    async def _examine(self) -> list[health.Health | StoreError]:
        """Every server as it describes itself, or why it does not answer."""
        patience = Patience()
        while True:
            try:
                pools = await self._wire.all_pools()
            except (Cut, Exception) as error:
                raise translated(error, self._address.shown) from error
            servers = [await _described(pool) for pool in pools]
            behind = any(isinstance(server, health.Health) and server.replica for server in servers)
            if not behind or self._address.kind == "single" or not await patience.left():
                return servers
            # A sentinel or a node that has not noticed the failover yet named this replica as the primary.
            await self._wire.look_again()


async def _described(pool: Pool) -> health.Health | StoreError:
    try:
        return await health.examine(pool)
    except ONE_NODE as error:
        return error
