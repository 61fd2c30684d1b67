"""Settle: what became of the jobs of a lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import HeadraceError, OutcomeUnknown
from headrace.model.lease import Token
from headrace.model.outcome import Settlement
from headrace.store.redis.arguments import SettleArguments, all_done, done_args
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.store_clock import StoreClock

_WHOLE: Final = 2
"""A part of a lease that is settled whole, see `settle.lua`."""


class Settle:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, leases: LeaseHomes) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._leases = time, leases

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        try:
            refused = await self._settle(token, settlements)
        except HeadraceError:
            # What was sent may have ended the lease. The script must take the caller's repetition for this same call.
            self._leases.doubtful.add(token)
            raise
        self._leases.doubtful.discard(token)
        return refused

    async def _settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        homes = self._leases.known.get(token)
        if homes is not None and len(homes) == 1 and all_done(settlements):
            return await self._settle_done(homes[0], token, len(settlements))
        wanted = SettleArguments(settlements)
        if not wanted.positions:
            return wanted.impossible
        accepted: set[int] = set()
        states: dict[str, int] = {}
        round = self._client.round()
        for queue in homes if homes is not None else await self._leases.of(token):
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                for args, positions in wanted.calls():
                    answer = await self._settle_in(queue, token, args)
                    if answer == -1:
                        break
                    accepted |= positions.difference(answer[1:])
                    states[queue] = answer[0]
        refused = wanted.positions - accepted
        round.end(needs_all=bool(refused) and token not in self._leases.given_up)
        if round.complete:
            await self.end_if_over(token, states)
        return wanted.impossible | refused

    async def _settle_done(self, queue: str, token: Token, count: int) -> frozenset[int]:
        """The common case, without a set of positions: those cost more than everything else here."""
        answer = await self._settle_in(queue, token, done_args(count))
        if answer == -1:
            return frozenset(range(count))
        await self.end_if_over(token, {queue: answer[0]})
        return frozenset(answer[1:])

    async def _settle_in(self, queue: str, token: Token, args: list[Any]) -> Reply:
        """A call whose answer was lost is repeated, and tells the script so: the first call may have ended the lease."""
        keys, words = self._keys.of(queue), (self._time.given, token.hex)
        try:
            answer = await self._wire.run(
                scripts.SETTLE, keys, *words, int(token in self._leases.doubtful), *args, repeat=False
            )
        except OutcomeUnknown:
            answer = await self._wire.run(scripts.SETTLE, keys, *words, 1, *args, repeat=False)
        await self._client.confirmed(keys[0])
        return answer

    # ── leases that span queues ─────────────────────────────────────────────

    async def end_if_over(self, token: Token, states: dict[str, int]) -> None:
        """A lease that spans queues ends when the last of its parts is settled."""
        if not states or not all(states.values()):
            return
        for queue, state in states.items():
            if state == _WHOLE:
                await self._client.run(scripts.SETTLE, queue, self._time.given, token.hex, 2, b"", 0, 0)
        self._leases.known.pop(token, None)

    async def states(self, token: Token, queues: Sequence[str]) -> dict[str, int]:
        """How far the parts of a lease are settled."""
        answers = await self._client.run_each(scripts.SETTLE, queues, self._time.given, token.hex, 0, b"", 0, 0)
        return {queue: answer[0] for queue, answer in zip(queues, answers, strict=True) if answer != -1}
