"""CLAIM: ready ranges become a lease. The function chooses them; the store remembers the turns for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import OutcomeUnknown, StoreError, Unavailable
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import LEASE_BYTES, MAX_LEASE, Ask, Band, Lease, Token, WorkerId
from headrace.store.claim_size import ClaimSize
from headrace.store.postgres import faults, rows
from headrace.store.postgres.arguments import (
    Bool,
    Int2s,
    Int4,
    Int4s,
    Int8,
    Int8s,
    Interval,
    Json,
    Text,
    Texts,
    Time,
    Uuid,
    call,
)
from headrace.store.postgres.heads import Heads, owed_args
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.server import Server

_LOOKS, _MOST_LOOKS = 1000, 16_000
"""Blocked lanes that a claim looks at. If there are more, it looks again, at four times as many and the whole ring round."""
_MOST_WAITS: Final = 8
"""How often a claim that finds nothing waits for another one that counts under the same limit keys, and looks again."""
_MANY_QUEUES: Final = 64
"""More queues than these travel as one text, because the driver and the server take an array apart name by name."""


class ClaimArgs(NamedTuple):
    """See `sql/claim.sql`."""

    p_queues: Texts
    p_limit: Int4
    p_token: Uuid
    p_worker: Uuid
    p_ttl: Interval
    p_tenant: Text | None
    p_weights: Json | None
    b_lowest: Int2s | None = None
    b_highest: Int2s | None = None
    b_share: Int4s | None = None
    b_queues: Texts | None = None
    ring_priority: Int2s | None = None
    ring_queue: Texts | None = None
    ring_tenant: Texts | None = None
    ring_owed: Int4s | None = None
    lane_priority: Int2s | None = None
    lane_queue: Texts | None = None
    lane_tenant: Texts | None = None
    lane_lane: Int8s | None = None
    head_priority: Int2s | None = None
    head_queue: Texts | None = None
    head_tenant: Texts | None = None
    head_lane: Int8s | None = None
    head_seq: Int8s | None = None
    p_many: Int4 = 0
    p_looks: Int4 = _LOOKS
    p_now: Time | None = None
    p_await: Int4 | None = None
    p_probe: Bool = False
    owed_priority: Int2s | None = None
    owed_queue: Texts | None = None
    owed_tenant: Texts | None = None
    owed_jobs: Int4s | None = None
    p_bytes: Int8 | None = LEASE_BYTES
    p_fewer: Bool = False
    p_sole: Bool = False


class HeldArgs(NamedTuple):
    """See `sql/held.sql`."""

    p_token: Uuid


_CLAIM: Final = call("claim", ClaimArgs)
_HELD: Final = call("held", HeldArgs)


class Claims:
    """The claims of one store object, with what it remembers from one to the next."""

    def __init__(self, server: Server, leases: LeaseMemory) -> None:
        self._server = server
        self._leases = leases
        self._heads = Heads()
        self._size = ClaimSize()
        # Blocked lanes that the next claim looks at: as many as the last one had to.
        self._looks = _LOOKS
        self._swept: tuple[WorkerId, Sequence[str], int] | None = None
        """The worker and the queues of the last claim, if it left nothing, and the hints before it. A claim that begins
        while no hints of other processes arrive does not count."""

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        if limit < 1 or not ask.queues or (ask.only_bands and not ask.bands):
            return None
        asked = ask_args(ask, self._size.limit(limit))
        bell = self._server.bell
        seen = bell.count
        bell.searched = True
        swept, self._swept = self._swept, None
        looks, self._looks = self._looks, _LOOKS
        waits, busy = 0, None
        while True:
            memory, full = self._heads.args()
            owed = self._heads.take_owed()
            args = ClaimArgs(
                **asked,
                **memory,
                **owed_args(owed),
                p_looks=looks,
                p_now=self._server.injected,
                p_await=busy,
                p_probe=self._heads.probe,
                p_fewer=self._size.careful,
                p_sole=swept is not None and full,
            )
            answered = await self._claim(args, ask.token)
            if isinstance(answered, Lease):
                return answered
            answer, most = answered
            first = answer[0]
            self._heads.learn(first, full=full)
            self._heads.learn_owed(first, owed)
            bell.opens(first["opens"])
            if first["r_batch"] is not None:
                lease = self._lease(ask.token, answer, most if most < limit else None)
                if not first["more"]:
                    self._left_nothing(ask, seen)
                return lease
            busy = first["busy"]
            if busy is not None and waits < _MOST_WAITS:
                waits += 1
            elif first["more"] and looks < _MOST_LOOKS:
                looks *= 4
            else:
                break
        self._looks = looks
        self._heads.forget()
        bell.seen = seen
        if not first["more"] and busy is None:
            self._left_nothing(ask, seen)
        return await self._held(ask.token) if first["held"] else None

    def released(self) -> None:
        """Jobs have become ready because others of this store object's leases have ended."""
        self._heads.released()

    def has_left_nothing(self, ask: Ask) -> bool:
        """Whether this worker's last claim left nothing in these queues, and every job since then would have sent a hint."""
        bell, swept = self._server.bell, self._swept
        return (
            swept is not None
            and bell.hears
            and (ask.worker, ask.queues) == swept[:2]
            and not bell.heard_since(swept[2], ask.queues)
        )

    def _left_nothing(self, ask: Ask, hints: int) -> None:
        """A claim that began after so many hints has left nothing that it may take."""
        bell = self._server.bell
        bell.seen = hints
        if bell.hears and ask.tenant is None and not ask.only_bands:
            self._swept = ask.worker, ask.queues, hints

    async def _claim(self, args: ClaimArgs, token: Token) -> tuple[list[Any], int] | Lease:
        """The rows of the answer, and how many jobs the claim asked for: fewer than it should if these are too large."""
        pool = self._server.pool
        try:
            try:
                return await pool.rows(_CLAIM, *args, write=True, use="claim"), args.p_limit
            except StoreError as error:
                if (fitting := faults.fitting(error.__cause__)) is None:
                    raise
                self._size.expect_large()
                args = args._replace(p_fewer=True, p_limit=fitting)
                return await pool.rows(_CLAIM, *args, write=True, use="claim"), fitting
        except OutcomeUnknown:
            # The answer is what the token holds. If the claim never happened, the store claims again.
            if (held := await self._held(token)) is not None:
                return held
            return await pool.rows(_CLAIM, *args, write=True, use="claim"), args.p_limit
        except Unavailable:
            # The server also refuses a token that has a lease already, claimed before through another store object.
            if (held := await self._held(token)) is not None:
                return held
            raise

    async def _held(self, token: Token) -> Lease | None:
        """The lease of a claim whose answer was lost."""
        held = await held_by(self._server, token)
        if not held:
            return None
        jobs = [job for _, job in rows.held(held)]
        self._leases.remember(token, len(jobs))
        return Lease(token, jobs, held[0]["suspect"])

    def _lease(self, token: Token, answer: list[Any], most: int | None) -> Lease:
        first, jobs, large = answer[0], *rows.claimed(answer)
        self._size.learn(len(jobs), large)
        self._leases.remember(token, len(jobs), set(first["r_queue"]) if first["limited"] else None)
        return Lease(token, jobs, first["suspect"], cut=len(jobs) == most)


async def held_by(server: Server, token: Token) -> list[Any]:
    """The unsettled jobs of a lease, as rows."""
    return await server.pool.rows(_HELD, *HeldArgs(token), write=False)


def ask_args(ask: Ask, limit: int) -> dict[str, Any]:
    """The arguments of a claim that the worker decides."""
    args: dict[str, Any] = {
        "p_queues": list(ask.queues) if len(ask.queues) <= _MANY_QUEUES else [f",{','.join(ask.queues)},"],
        "p_limit": limit,
        "p_token": ask.token,
        "p_worker": ask.worker,
        "p_ttl": ask.ttl,
        "p_tenant": ask.tenant,
        "p_weights": msgspec.json.encode(ask.weights).decode() if ask.weights else None,
    }
    bands = ask.bands
    if bands:
        if not ask.only_bands:
            bands = (*bands, Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, limit))
        args["b_lowest"] = [band.lowest for band in bands]
        args["b_highest"] = [band.highest for band in bands]
        args["b_share"] = [band.share for band in bands]
        args["b_queues"] = [",".join(band.queues) or None for band in bands]
    return args
