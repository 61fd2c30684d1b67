"""Heartbeat: renews leases, and writes that a worker is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import StoreError, StoreFull
from headrace.model.lease import ORDERS, UPKEEP_PLACES, Presence, Pulse, Stop, Token
from headrace.store.redis.arguments import microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.element import from_us
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.records import presence_bytes, record_of, text_bytes
from headrace.store.redis.store_clock import StoreClock

_MOST_GIVEN_UP: Final = 20_000
_NAMED: Final = 60 * 86_400
"""Seconds for which a worker's name is kept after it was written last."""
_NAMED_AGAIN: Final = 86_400
_MOST_NAMED: Final = 10_000
_MOST_LOOKED: Final = 250
"""Queues of a worker that its heartbeat looks into."""
_SILENT: Final = Pulse(frozenset(), ())
_SHORTEST: Final = 1.0
"""Seconds that a heartbeat waits for an answer at least, whatever the lease."""


class Heartbeat:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, leases: LeaseHomes) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._leases = time, leases
        self._named: dict[UUID, float] = {}
        """When a worker's name is to be written again."""
        self._unheard: dict[Token, float] = {}
        """Since when a node that has a part of a lease does not answer to its heartbeat."""

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        alive: set[Token] = set()
        stops: list[Stop] = []
        homes = await self._leases.by_queue(dict.fromkeys(tokens))
        words = {queue: [token.hex for token in theirs] for queue, theirs in homes.items()}
        calls = {queue: (self._time.given, microseconds(ttl), *hexes) for queue, hexes in words.items()}
        trouble: StoreError | None = None
        try:
            answers = await self._client.ask_by(
                scripts.HEARTBEAT, calls, within=max(_SHORTEST, ttl.total_seconds() / 4)
            )
        except ONE_NODE as error:
            if not self._keys.clustered:
                raise
            answers, trouble = {}, error
            # Raises if no node answers at all: then the worker keeps its leases.
            await self._wire.time(self._keys.queues)
        for queue, answer in answers.items():
            living: list[int]
            stop: list[int]
            (living, stop), theirs = answer, homes[queue]
            alive.update(token for token, lives in zip(theirs, living, strict=True) if lives)
            stops += [Stop(theirs[at], position) for at, position in zip(stop[::2], stop[1::2], strict=True)]
        unheard = {token for queue, theirs in homes.items() if queue not in answers for token in theirs}
        lost = frozenset(tokens) - alive - unheard | self._run_out(tokens, alive, unheard, ttl)
        if trouble is not None and not lost:
            raise trouble
        for token in lost:
            self._leases.forget(token)
        if presence is None:
            return Pulse(lost, tuple(stops))
        pulse = await self._present(presence, ttl, renewed=bool(tokens))
        return replace(pulse, lost=lost, stops=tuple(stops))

    def _run_out(
        self, tokens: Sequence[Token], alive: set[Token], unheard: set[Token], ttl: timedelta
    ) -> frozenset[Token]:
        """Leases with a part on a node that has not answered for as long as they last: they have run out there."""
        if not unheard:
            for token in self._unheard.keys() & set(tokens):
                del self._unheard[token]
            return frozenset()
        now = asyncio.get_running_loop().time()
        # A lease that lives elsewhere, and is not known to have jobs on that node, is well.
        ill = {token for token in unheard if token in self._leases.known or token not in alive}
        for token in tokens:
            if token in ill:
                self._unheard.setdefault(token, now)
            else:
                self._unheard.pop(token, None)
        gone = frozenset(token for token in ill if now - self._unheard[token] >= ttl.total_seconds())
        if len(self._leases.given_up) > _MOST_GIVEN_UP:
            self._leases.given_up.clear()
            self._unheard.clear()
        self._leases.given_up |= gone
        return gone

    async def _present(self, presence: Presence, ttl: timedelta, *, renewed: bool) -> Pulse:
        """Write that the worker is alive. The answer tells nothing of leases.

        A failure reaches only a worker without leases: renewed leases are renewed.
        """
        try:
            record = presence_bytes(await self._time.now_us(), presence)
            keys = [self._keys.workers, self._keys.upkeep(presence.upkeep or "")]
            orders = f"{self._keys.records[0]}r:{ORDERS}"
            if not self._keys.clustered:
                keys += [orders, *self._keys.home]
                if len(presence.queues) <= _MOST_LOOKED:
                    keys += map(self._keys.queue, presence.queues)
            places = 0 if presence.upkeep is None else UPKEEP_PLACES
            name = str(presence.id)
            args = (presence.id.bytes, record, self._time.given, microseconds(ttl), places, name)
            upkeep, now_us, order, ready = await self._wire.run(scripts.PRESENCE, keys, *args)
            if self._time.clock is None:
                await self._time.hear(int(now_us))
            if self._keys.clustered:
                order = await self._wire.command(orders, "HGET", orders, name)
            await self._name(presence)
        except StoreError:
            if not renewed:
                raise
            return _SILENT
        return Pulse(
            frozenset(),
            (),
            bool(int(upkeep)),
            from_us(int(now_us)),
            record_of(order)[1] if order else b"",
            None if ready == b"" else bool(ready),
        )

    async def _name(self, presence: Presence) -> None:
        if monotonic() < self._named.get(presence.id, 0.0):
            return
        key = self._keys.name(presence.id)
        # A full server gets the worker's name later.
        with suppress(StoreFull):
            await self._wire.command(key, "SET", key, text_bytes(presence.name), "EX", _NAMED)
        if len(self._named) >= _MOST_NAMED:
            self._named.clear()
        self._named[presence.id] = monotonic() + _NAMED_AGAIN
