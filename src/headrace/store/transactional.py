"""What stores have beside the contract that can write inside the user's own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable
from uuid import UUID

from headrace.model.gate import Predecessor
from headrace.model.job import Batch
from headrace.model.lease import Token
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued
from headrace.model.step import Step


@runtime_checkable
class Transactional(Protocol):
    """Stores that can write inside the user's own transaction.

    The sync methods run in the caller's thread on a sync connection. The async methods accept both kinds. Raise
    BadTransaction for an object they do not know, an async connection given to a sync call, a connection to another
    database, or one that is not in a transaction and would commit at once.
    """

    @property
    def one_writer(self) -> bool:
        """One writer excludes all others, so a job is completed in its present lease.

        Detaching it first would wait for the same transaction that completes it.
        """
        ...

    def followed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        """Jobs and gates by id, in the order asked, as this transaction sees them: with those that it has added. None: there is none."""
        ...

    async def afollowed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]: ...

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued: ...

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued: ...

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]: ...

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]: ...

    def add_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]: ...

    async def aadd_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]: ...
