"""Which queues hold the parts of a lease, as far as this process knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.model.lease import Lease, Token
from headrace.store.redis.client.client import Client
from headrace.store.redis.queue_list import QueueList

_FEW: Final = 4
"""Jobs of a lease that `settle.lua` would keep one by one."""
_LARGE: Final = 16_384
"""Bytes of a payload that costs more to copy than a list for its lease."""


class LeaseHomes:
    """Shared by the verbs on leases: a claim writes here, and the others ask only the queues that are written here."""

    def __init__(self, client: Client, queues: QueueList) -> None:
        self._client, self._queues = client, queues
        self.known: dict[Token, tuple[str, ...]] = {}
        """The queues of leases that were claimed here. A token from another process is looked for in all queues."""
        self.large: set[Token] = set()
        """Leases of a few jobs that are large: settle must not copy them."""
        self.doubtful: set[Token] = set()
        """Leases with a settlement that was sent and not answered."""
        self.given_up: set[Token] = set()
        """Leases that ran out on a node which does not answer: settle refuses what it cannot settle there."""

    def remember(self, lease: Lease, queues: Iterable[str]) -> None:
        """A claim has made this lease of jobs from these queues."""
        self.known[lease.token] = tuple(dict.fromkeys(queues))
        if len(lease.jobs) <= _FEW and max(len(job.payload) for job in lease.jobs) >= _LARGE:
            self.large.add(lease.token)

    def forget(self, token: Token) -> None:
        """The lease is over."""
        self.known.pop(token, None)
        self.large.discard(token)

    async def of(self, token: Token) -> Sequence[str]:
        """The queues that may have a part of this lease."""
        known = self.known.get(token)
        return known if known is not None else list(await self.holders([token]))

    async def by_queue(self, tokens: Iterable[Token]) -> dict[str, list[Token]]:
        """Tokens by the queues where they may be."""
        homes: dict[str, list[Token]] = {}
        strange: list[Token] = []
        for token in tokens:
            if (queues := self.known.get(token)) is None:
                strange.append(token)
            for queue in queues or ():
                homes.setdefault(queue, []).append(token)
        for queue, theirs in (await self.holders(strange)).items() if strange else ():
            homes.setdefault(queue, []).extend(theirs)
        return homes

    async def holders(self, tokens: Sequence[Token]) -> dict[str, list[Token]]:
        """For leases from other processes: the queues that have parts of them, or all queues if that is unknown."""
        queues = await self._queues.names()
        known, silent = await self._client.survey(queues, "tokens", *(token.hex for token in tokens))
        if silent is not None or not self.doubtful.isdisjoint(tokens):
            # A node that is down may have a part, and the token of a lease that is over is in no lease.
            return {queue: list(tokens) for queue in queues}
        return {queue: [tokens[int(number)] for number in numbers] for queue, numbers in known.items()}
