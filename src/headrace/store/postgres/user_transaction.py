"""Writing inside the user's own transaction: the same SQL functions through the user's own connection, with any driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID
from weakref import WeakSet

from headrace.errors import BadTransaction, SchemaMismatch
from headrace.model.gate import Predecessor
from headrace.model.job import Batch
from headrace.model.lease import Token
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued
from headrace.model.step import Step
from headrace.store.due import AT_ONCE
from headrace.store.postgres import faults, rows
from headrace.store.postgres.server import Server
from headrace.store.postgres.user_connection import AsyncCarrier, Carrier, Statement, async_carrier, sync_carrier
from headrace.store.postgres.verbs.enqueue import FUNCTION as ENQUEUE
from headrace.store.postgres.verbs.enqueue import EnqueueArgs, enqueue_args, hints_of
from headrace.store.postgres.verbs.enqueue_linked import FUNCTION as ENQUEUE_LINKED
from headrace.store.postgres.verbs.enqueue_linked import EnqueueLinkedArgs, linked_args
from headrace.store.postgres.verbs.gates import place_of
from headrace.store.postgres.verbs.settle import FUNCTION as SETTLE
from headrace.store.postgres.verbs.settle import SettleArgs, SuspendArgs, settle_args, suspend_args
from headrace.store.postgres.verbs.settle import hints_of as settle_hints
from headrace.store.postgres.verbs.steps import FUNCTION as ADD_STEPS
from headrace.store.postgres.verbs.steps import AddStepsArgs, steps_args
from headrace.store.postgres.wakeup import due_hint

IDENTITY: Final = (
    "select i.id, (select d.oid::int8 from pg_database d where d.datname = current_database()) from headrace.identity i"
)

_ENQUEUE: Final = Statement.call(ENQUEUE, EnqueueArgs)
_ENQUEUE_LINKED: Final = Statement.call(ENQUEUE_LINKED, EnqueueLinkedArgs)
_SETTLE: Final = Statement.call(SETTLE, SettleArgs)
_SUSPEND: Final = Statement.call(SETTLE, SettleArgs, SuspendArgs)
_ADD_STEPS: Final = Statement.call(ADD_STEPS, AddStepsArgs)
_FOLLOWED_TEXT: Final = """
with u as (select * from unnest({batches}, {ords}) with ordinality x(batch, ord, o))
select array_agg(f.o), array_agg(f.tenant), array_agg(f.options) from (
    select u.o, coalesce(j.tenant, '') as tenant, j.options from u join headrace.job j on j.batch = u.batch and j.ord = u.ord
    union all
    select u.o, g.tenant, null from u join headrace.gate g on g.id = u.batch
) f"""
"""One row, because some drivers are asked for one only."""
_FOLLOWED: Final = Statement(
    _FOLLOWED_TEXT.format(batches="$1::uuid[]", ords="$2::int4[]"),
    _FOLLOWED_TEXT.format(batches="cast(%s as uuid[])", ords="cast(%s as int4[])"),
)
_PRESENT: Final = Statement.plain("select to_regclass('headrace.identity') is not null")
_IDENTITY: Final = Statement.plain(IDENTITY)


class UserTransactions:
    """The part of the store that writes in the user's transaction. See contract.Transactional."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._identity: tuple[UUID, int] | None = None
        self._checked: WeakSet[Any] = WeakSet()

    def learn_identity(self, row: Sequence[Any]) -> None:
        """The id of this store, to recognise a connection to another one."""
        self._identity = (UUID(str(row[0])), row[1])
        self._checked = WeakSet()

    def followed(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return _as_followed(ids, carrier.row(_FOLLOWED, _places(ids)))

    async def afollowed(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.followed(tx, ids)
        await self._acheck(carrier)
        return _as_followed(ids, await carrier.arow(_FOLLOWED, _places(ids)))

    def enqueue(self, tx: object, batch: Batch) -> Enqueued:
        if not batch.jobs and not batch.linked:
            return Enqueued({})
        carrier = sync_carrier(tx)
        self._check(carrier)
        return self._enqueued(batch, carrier.row(*self._enqueue_call(batch)))

    async def aenqueue(self, tx: object, batch: Batch) -> Enqueued:
        carrier = async_carrier(tx)
        if carrier is None or not (batch.jobs or batch.linked):
            return self.enqueue(tx, batch)
        await self._acheck(carrier)
        return self._enqueued(batch, await carrier.arow(*self._enqueue_call(batch)))

    def _enqueue_call(self, batch: Batch) -> tuple[Statement, tuple[Any, ...]]:
        if batch.linked:
            return _ENQUEUE_LINKED, linked_args(batch, self._server.injected)
        return _ENQUEUE, enqueue_args(batch, self._server.injected)

    def _enqueued(self, batch: Batch, answer: Sequence[Any]) -> Enqueued:
        self._server.bell.echo(hints_of(batch) | ({due_hint(AT_ONCE)} if batch.linked else set()))
        return rows.enqueued(batch, answer)

    def settle(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return self._settled(settlements, carrier.row(*self._settle_call(token, settlements)))

    async def asettle(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.settle(tx, token, settlements)
        await self._acheck(carrier)
        return self._settled(settlements, await carrier.arow(*self._settle_call(token, settlements)))

    def _settle_call(
        self, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> tuple[Statement, tuple[Any, ...]]:
        args = settle_args(token, settlements, None, self._server.injected)
        suspends = suspend_args(settlements)
        return (_SETTLE, args) if suspends is None else (_SUSPEND, (*args, *suspends))

    def add_steps(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        carrier = sync_carrier(tx)
        self._check(carrier)
        return rows.refused(steps, carrier.row(_ADD_STEPS, steps_args(token, steps))[0])

    async def aadd_steps(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        carrier = async_carrier(tx)
        if carrier is None:
            return self.add_steps(tx, token, steps)
        await self._acheck(carrier)
        return rows.refused(steps, (await carrier.arow(_ADD_STEPS, steps_args(token, steps)))[0])

    def _settled(self, settlements: Sequence[tuple[int, Settlement]], answer: Sequence[Any]) -> frozenset[int]:
        refused, follow, woken = answer
        hints = settle_hints(settlements) | set(woken or ())
        if follow:
            # `promote` finds what follows when the transaction has ended.
            hints.add(due_hint(AT_ONCE))
        if hints:
            self._server.bell.echo(hints)
        return rows.refused(settlements, refused)

    # A connection is checked once. The catalogue is read first, because a failing statement would end the user's
    # transaction.

    def _check(self, carrier: Carrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not carrier.row(_PRESENT, ())[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, carrier.row(_IDENTITY, ()))

    async def _acheck(self, carrier: AsyncCarrier) -> None:
        if self._identity is None or self._known(carrier.key):
            return
        if not (await carrier.arow(_PRESENT, ()))[0]:
            raise SchemaMismatch(f"there is no headrace schema in the database of this transaction: {faults.MIGRATE}")
        self._compare(carrier.key, await carrier.arow(_IDENTITY, ()))

    def _known(self, key: object) -> bool:
        try:
            return key in self._checked
        except TypeError:
            return False

    def _compare(self, key: object, row: Sequence[Any]) -> None:
        if (UUID(str(row[0])), int(row[1])) != self._identity:
            raise BadTransaction(
                f"this transaction is on another database than the store at {self._server.address.shown}: use a connection to that one"
            )
        try:
            self._checked.add(key)
        except TypeError:
            return  # This driver's connections cannot be remembered, so they are checked each time.


def _places(ids: Sequence[UUID]) -> tuple[list[UUID], list[int]]:
    """The columns of jobs and gates by their ids."""
    places = [place_of(id) for id in ids]
    return [batch for batch, _ in places], [ord for _, ord in places]


def _as_followed(ids: Sequence[UUID], row: Sequence[Any]) -> list[Predecessor | None]:
    stored = {
        place: Predecessor(tenant or "", None if options is None else bytes(options))
        for place, tenant, options in zip(*(column or () for column in row), strict=True)
    }
    return [stored.get(place) for place in range(1, len(ids) + 1)]
