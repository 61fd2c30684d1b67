"""Sleeping until something opens: by our own clock, for a server looks at its sleepers' time ten times a second only."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.records import LimitRule
from headrace.store.redis.store import RedisStore


@pytest.fixture(params=["redis", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("call", ["wait", "wait_to_claim"])
async def test_a_rate_opens_without_a_word_of_the_server(
    real_store: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = cast("RedisStore", real_store)
    await store.limit("api", LimitRule(rate=20.0, burst=1), None)
    await store.enqueue(Batch(new_batch(), [NewJob("t", b"", Lane("q", limits=("api",)))] * 2))

    def ask() -> Ask:
        return Ask(new_worker_id(), ("q",), 10, timedelta(seconds=30), new_token())

    first = await store.claim(ask())
    assert first is not None
    assert len(first.jobs) == 1
    assert await store.claim(ask()) is None

    async def deaf(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(store.client.wire, "wait", deaf)
    monkeypatch.setattr(store.client.wire, "wait_and_run", deaf)
    heard = store.wait(["q"], 3600) if call == "wait" else store.wait_to_claim(ask(), 3600)
    assert await heard is True
    second = await store.claim(ask())
    assert second is not None
    assert len(second.jobs) == 1
