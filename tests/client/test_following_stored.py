"""Jobs that follow stored ones: in bulk calls, and in the transaction that enqueued what they follow."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import aiosqlite
import psycopg
import pytest

from headrace import Handle, Headrace, JobNotFound, JobState
from headrace.errors import GroupOver
from headrace.model.job import job_id, new_batch
from headrace.testing import drain, use_memory

BLOCKED = JobState.BLOCKED


class Shop:
    """Tasks of one app, and what they did."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.ran: list[str] = []

        @app.task
        async def charge(order: int) -> str:
            self.ran.append("charge")
            return f"receipt {order}"

        @app.task
        async def mail(receipt: str) -> str:
            self.ran.append(f"mail {receipt}")
            return receipt

        self.charge, self.mail = charge, mail


@pytest.fixture
def shop(app: Headrace) -> Iterator[Shop]:
    yield Shop(app)
    app.close()


def lost(shop: Shop) -> Handle[Any]:
    """A handle of a job that is not stored."""
    return shop.charge.handle(job_id(new_batch(), 0))


# ── in bulk calls ────────────────────────────────────────────────────────────


async def test_jobs_of_a_bulk_call_get_the_tenant_of_what_they_follow(shop: Shop):
    first = await shop.charge.using(tenant="acme").aenqueue(1)
    calls = [
        shop.mail.using(after=first).job("a"),
        shop.mail.using(after=first, tenant="globex").job("b"),
        shop.mail.job("c"),
    ]
    for handles in (await shop.app.aenqueue_many(calls), shop.app.enqueue_many(calls)):
        jobs = [await handle.astatus() for handle in handles]
        assert [(job.state, job.tenant) for job in jobs] == [
            (BLOCKED, "acme"),
            (BLOCKED, "globex"),
            (JobState.READY, ""),
        ]


async def test_a_bulk_call_that_follows_what_is_not_stored_stores_nothing(shop: Shop):
    group = shop.app.open_group("never opened")
    for after, error in ((lost(shop), JobNotFound), (group, GroupOver)):
        calls = [shop.mail.job("a"), shop.mail.using(after=after).job("b")]
        with pytest.raises(error):
            await shop.app.aenqueue_many(calls)
        with pytest.raises(error):
            shop.app.enqueue_many(calls)
    assert (await shop.app.astats()).queues == []


# ── in the caller's transaction ──────────────────────────────────────────────


@contextmanager
def transaction(url: str) -> Generator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            yield connection
    else:
        with psycopg.connect(url) as connection:
            yield connection


@asynccontextmanager
async def async_transaction(url: str) -> AsyncGenerator[Any]:
    if url.startswith("sqlite"):
        async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
            yield connection
    else:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection


in_sql = pytest.mark.parametrize("store_name", ["sqlite", "postgres"], indirect=True)


@in_sql
async def test_a_job_follows_one_of_the_same_transaction(shop: Shop, store_url: str):
    charge, mail, app = shop.charge, shop.mail, shop.app
    with transaction(store_url) as tx:
        first = charge.using(tx=tx, tenant="acme").enqueue(7)
        alone = mail.using(after=first, tx=tx).enqueue("alone")
        result = mail.using(tx=tx).enqueue(first.out)
        graph = app.enqueue(mail.using(after=[first, alone]).job("graph").then(mail), tx=tx)
        [many] = app.enqueue_many([mail.using(after=graph).job("many")], tx=tx)
        followers = [alone, result, graph, many]
        with pytest.raises(JobNotFound, match="pass that one as tx="):
            mail.using(after=first).enqueue("from outside")
        with pytest.raises(JobNotFound):
            mail.using(after=lost(shop), tx=tx).enqueue("lost")
        tx.commit()
    jobs = [await handle.astatus() for handle in followers]
    assert [(job.state, job.tenant) for job in jobs] == [(BLOCKED, "acme")] * 4
    async with app.worker():
        assert await many.aresult(30) == "many"
    assert sorted(shop.ran) == ["charge", "mail alone", "mail graph", "mail graph", "mail many", "mail receipt 7"]


@in_sql
async def test_a_job_follows_one_of_the_same_transaction_in_async_code(shop: Shop, store_url: str):
    charge, mail, app = shop.charge, shop.mail, shop.app
    async with async_transaction(store_url) as tx:
        first = await charge.using(tx=tx, tenant="acme").aenqueue(7)
        result = await mail.using(tx=tx).aenqueue(first.out)
        graph = await app.aenqueue(mail.using(after=[first, result]).job("graph").then(mail), tx=tx)
        [many] = await app.aenqueue_many([mail.using(after=graph).job("many")], tx=tx)
        with pytest.raises(JobNotFound):
            await mail.using(after=lost(shop), tx=tx).aenqueue("lost")
        await tx.commit()
    jobs = [await handle.astatus() for handle in (result, graph, many)]
    assert [(job.state, job.tenant) for job in jobs] == [(BLOCKED, "acme")] * 3
    async with app.worker():
        assert await many.aresult(30) == "many"


@in_sql
def test_a_rollback_takes_the_job_and_its_followers(shop: Shop, store_url: str):
    shop.app.stats()  # makes what is not there
    with transaction(store_url) as tx:
        first = shop.charge.using(tx=tx).enqueue(7)
        shop.mail.using(tx=tx).enqueue(first.out)
        tx.rollback()
    assert shop.app.stats().queues == []


def test_in_tests_a_job_follows_one_of_the_same_transaction():
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    shop = Shop(Headrace("memory://"))
    with use_memory(shop.app), Session(create_engine("sqlite://")) as session:
        first = shop.charge.using(tx=session, tenant="acme").enqueue(7)
        last = shop.mail.using(tx=session).enqueue(first.out)
        with pytest.raises(JobNotFound):
            shop.mail.using(after=lost(shop), tx=session).enqueue("lost")
        session.commit()
        assert last.status().tenant == "acme"
        drain(shop.app)
    assert shop.ran == ["charge", "mail receipt 7"]
