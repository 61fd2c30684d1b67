"""Settle: what became of the jobs of a lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from headrace.errors import HeadraceError, OutcomeUnknown
from headrace.model.lease import Token
from headrace.model.outcome import Again, Settlement
from headrace.runtime import faults
from headrace.store.redis.arguments import SettleArguments, all_done, done_args, waits_of
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import STEP, Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.gate_homes import GateHomes
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling

_WHOLE: Final = 2
"""A part of a lease that is settled whole, see `settle.lua`."""
_REPEATED: Final = "r"
_ENDED: Final = "e"
_LARGE: Final = "w"
"""Letters for the script: see `settle.lua`."""
_LINKED: Final = -2
"""The answer of the script that does not know of links, for a queue that has some."""
_OWES: Final = 4
"""Added to the answer if another queue of a cluster is to be told something."""
_UNLINKED: Final = 8
"""Added to the answer if the queue has no links (any more)."""
_MORE: Final = 16
"""Added to the answer if more jobs follow than one script releases."""
_FOLLOWING: Final = 8
"""Scripts that go on with it: enough for the chains of one lease. Janitors go on with what a large group leaves."""
_NOWHERE: Final[dict[UUID, str]] = {}


class Settle:
    """See the contract."""

    def __init__(
        self, client: Client, time: StoreClock, leases: LeaseHomes, gates: GateHomes, telling: Telling
    ) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._leases, self._gates, self._telling = time, leases, gates, telling
        self._linked: set[str] = set()
        """Queues in which the ends of jobs count on gates, or let others go. Their leases are settled by another script."""

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
        suspended = waits_of(settlements)
        wanted = SettleArguments(settlements, await self._gate_homes(suspended) if suspended else _NOWHERE)
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
                    answer = await self._settle_in(queue, token, args, linked=bool(suspended))
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

    async def _settle_in(self, queue: str, token: Token, args: list[Any], *, linked: bool = False) -> Reply:
        """A call whose answer was lost is repeated, and tells the script so: the first call may have ended the lease."""
        keys, words = self._keys.of(queue), (self._time.given, token.hex)
        large = _LARGE if token in self._leases.large else ""
        script = scripts.SETTLE_LINKED if linked or queue in self._linked else scripts.SETTLE
        try:
            answer = await self._wire.run(
                script,
                keys,
                *words,
                _REPEATED + large if token in self._leases.doubtful else large,
                *args,
                repeat=False,
            )
        except OutcomeUnknown:
            answer = await self._wire.run(script, keys, *words, _REPEATED + large, *args, repeat=False)
        if answer == _LINKED:
            self._linked.add(queue)
            return await self._settle_in(queue, token, args)
        await self._client.confirmed(keys[0])
        if answer != -1 and answer[0] >= _OWES:
            await self._heed(queue, answer[0])
            answer[0] %= _OWES
        return answer

    async def _heed(self, queue: str, answer: int) -> None:
        """What the script that knows of links says besides."""
        if answer & _UNLINKED:
            self._linked.discard(queue)
        if answer & _OWES:
            await self._telling.try_to_tell(queue)
        if answer & _MORE:
            await self._follow(queue)

    async def _follow(self, queue: str) -> None:
        """Release what the script left, because janitors come later. They go on if this fails."""
        keys = self._keys.of(queue) if self._keys.clustered else self._keys.home
        for _ in range(_FOLLOWING):
            try:
                _, wait, *_ = await self._wire.run(scripts.PROMOTE, keys, self._time.given, STEP)
            except HeadraceError:
                return
            if int(wait) != 0:
                return
            if faults.ARMED:
                faults.reach("opening")

    async def _gate_homes(self, suspended: Sequence[Again]) -> dict[UUID, str]:
        """On a cluster: the prefixes of the queues of the gates that jobs go on waiting for."""
        if not self._keys.clustered:
            return {}
        gates = [gate for again in suspended for gate in again.gates]
        self._gates.remember(gates)
        homes = await self._gates.find(wait.gate for again in suspended for wait in again.waits)
        homes.update((gate.id, gate.queue) for gate in gates)
        return {id: self._keys.queue(queue) for id, queue in homes.items()}

    # ── leases that span queues ─────────────────────────────────────────────

    async def end_if_over(self, token: Token, states: dict[str, int]) -> None:
        """A lease that spans queues ends when the last of its parts is settled."""
        if not states or not all(states.values()):
            return
        for queue, state in states.items():
            if state == _WHOLE:
                await self._client.run(scripts.SETTLE_LINKED, queue, self._time.given, token.hex, _ENDED, b"", 0, 0)
        self._leases.forget(token)

    async def states(self, token: Token, queues: Sequence[str]) -> dict[str, int]:
        """How far the parts of a lease are settled."""
        answers = await self._client.run_each(scripts.SETTLE_LINKED, queues, self._time.given, token.hex, "", b"", 0, 0)
        return {queue: answer[0] % _OWES for queue, answer in zip(queues, answers, strict=True) if answer != -1}
