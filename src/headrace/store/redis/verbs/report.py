"""Report: what running tasks say of their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.model.lease import MAX_LOG, Report, Token
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, chunks
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.records import report_bytes

_AT_ONCE: Final = 100
"""Reports that one script takes."""


class Reports:
    """See the contract."""

    def __init__(self, client: Client, leases: LeaseHomes) -> None:
        self._client, self._leases = client, leases

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        positions = frozenset(position for position, _ in reports)
        refused = positions
        round = self._client.round()
        for queue in await self._leases.of(token) if reports else ():
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                for some in chunks(reports, _AT_ONCE):
                    words = [report_bytes(position, report) for position, report in some]
                    answer = await self._client.run(scripts.REPORT, queue, token.hex, MAX_LOG, *words)
                    if answer == -1:
                        break
                    refused -= {position for position, _ in some}.difference(answer)
        round.end(needs_all=bool(refused))
        return refused
