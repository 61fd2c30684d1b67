"""Input that headrace's http store would never send to `/v1/store/…` is refused on every store, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest

from headrace.model.job import Batch, Failure, JobState, Key, LogLine, NewJob, UniqueLock, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, Band, Presence, Report, new_token, new_worker_id
from headrace.model.records import Filter, LimitRule, Retention
from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.store.http import wire
from server.running import Running

TTL = timedelta(seconds=15)
NOWHERE = datetime(2026, 1, 1)  # noqa: DTZ001 - a time of no place is what this is about
CENTURY = timedelta(days=36_525)
NAMES = ("\0", "Ünï", "x" * 300, "two words", "/../etc")


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(**more: Any) -> Ask:
    usual: dict[str, Any] = {"queues": ("q",), "limit": 1, "ttl": TTL, "worker": new_worker_id(), "token": new_token()}
    return Ask(**(usual | more))


def presence(**more: Any) -> Presence:
    usual: dict[str, Any] = {"queues": ("q",), "slots": 1, "running": 0, "name": "n", "version": "1"}
    usual["started_at"] = datetime.now(UTC)
    return Presence(id=new_worker_id(), **(usual | more))


def job(lane: Lane | None = None, **more: Any) -> wire.WireBatch:
    return wire.pack_batch(Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", lane or Lane(), **more)]))


def bad_names(name: str) -> Iterator[tuple[str, Any]]:
    yield "wait", (["q", name], 0.0)
    yield "claim", (ask(queues=(name,)),)
    yield "claim", (ask(bands=(Band(0, 1, 1, (name,)),)),)
    yield "claim", (ask(weights={name: {"acme": 2}}),)
    yield "find", (Filter(queue=name), None, 5)
    yield "find", (Filter(task=name), None, 5)
    yield "lanes", ([name], 10)
    for kind in ("queue", "task"):
        yield "pause", (name, kind, "", None)
        yield "resume", (name, kind)
    yield "limit", (name, LimitRule(concurrency=1), None)
    yield "limit", (name, None, None)
    yield "heartbeat", ([], TTL, presence(queues=(name,)))
    yield "heartbeat", ([], TTL, presence(tasks=(name,)))
    yield "prune", (Retention(dead_by_queue={name: TTL}), 10)
    if name in {"\0", "x" * 300}:  # of tenants and records only these
        yield "claim", (ask(tenant=name),)
        yield "claim", (ask(weights={"q": {name: 2}}),)
        yield "find", (Filter(tenant=name), None, 5)
        yield "pause", (name, "tenant", "", None)
        yield "resume", (name, "tenant")
        yield "records", (name,)
        yield "record", (name, "n", b"", None)
        yield "record", ("kind", name, b"", None)
        yield "record", ("schedule", name, None, None)


def bad_times() -> Iterator[tuple[str, Any]]:
    yield "find", (Filter(since=NOWHERE), None, 5)
    yield "find", (Filter(until=NOWHERE), None, 5)
    yield "ended", (NOWHERE, 5)
    yield "pause", ("q", "queue", "", NOWHERE)
    yield "limit", ("shop", LimitRule(closed_until=NOWHERE), None)
    yield "heartbeat", ([], TTL, presence(started_at=NOWHERE))
    yield "enqueue", (job(due=NOWHERE),)
    yield "report", (new_token(), [(0, Report(lines=(LogLine(NOWHERE, "x"),)))])
    for span in (-TTL, CENTURY):
        yield "claim", (ask(ttl=span),)
        yield "heartbeat", ([], span, None)
        yield "enqueue", (job(key=Key("k", span, b"")),)
        yield "enqueue", (job(unique=UniqueLock("u", frozenset({JobState.READY}), span)),)
    yield "enqueue", (job(due=CENTURY),)


def bad_figures() -> Iterator[tuple[str, Any]]:
    for figure in (-1, 2**31, 2**62):
        yield "limit", ("shop", LimitRule(concurrency=figure), None)
        yield "claim", (ask(weights={"q": {"acme": figure}}),)
        yield "claim", (ask(bands=(Band(0, 1, figure),)),)
        yield "heartbeat", ([], TTL, presence(slots=figure))
    yield "claim", (ask(bands=(Band(-(2**40), 2**40, 1),)),)
    for figure in (float("nan"), float("inf"), -1.0):
        yield "limit", ("shop", LimitRule(rate=figure), None)
        yield "limit", ("shop", LimitRule(rate=1.0, burst=figure), None)
        yield "report", (new_token(), [(0, Report(progress=figure))])
    yield "limit", ("shop", LimitRule(rate=0.0), None)
    yield "claim", (ask(queues=tuple(f"q{number}" for number in range(1001))),)
    yield "wait", ([f"q{number}" for number in range(1001)], 0.0)
    for cost in ("x", "0", "-1", "99999999999999", ""):
        yield "enqueue", (job(Lane(limits=(f"shop@{cost}:acme",))),)


async def call(http: httpx2.AsyncClient, verb: str, *arguments: Any) -> httpx2.Response:
    return await http.post(f"/v1/store/{verb}", content=wire.encode(arguments), headers={"Content-Type": wire.MEDIA})


async def well(http: httpx2.AsyncClient) -> None:
    for path in ("/v1/limits", "/v1/pauses", "/v1/queues", "/v1/jobs", "/v1/workers", "/v1/audit", "/metrics"):
        assert (await http.get(path)).status_code == 200, path


async def test_what_makes_no_sense_is_refused_and_not_kept(server: Running) -> None:
    async with server.client(await server.token("admin")) as http:
        for verb, arguments in (*(each for name in NAMES for each in bad_names(name)), *bad_times(), *bad_figures()):
            answer = await call(http, verb, *arguments)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_value"), (verb, arguments, answer.text)
        await well(http)
        assert (await http.get("/v1/jobs")).json()["items"] == []
        assert (await http.get("/v1/pauses")).json()["items"] == []
        assert await server.store.limits() == {}


async def test_outcomes_that_make_no_sense(server: Running) -> None:
    batch = Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane(queue="q"))])
    await server.store.enqueue(batch)
    async with server.client(await server.token("admin")) as http:
        asked = ask()
        assert (await call(http, "claim", asked)).status_code == 200
        failure = Failure(1, "Error", "no", "", datetime.now(UTC))
        bad: list[wire.WireSettlement] = [
            wire.WireAgain(-1, 0),
            wire.WireAgain(0, 2**40),
            wire.WireAgain(0, 0, NOWHERE),
            wire.WireAgain(0, 0, 2**60),
            wire.WireAgain(0, 0, failure=msgspec.structs.replace(failure, at=NOWHERE)),
            wire.WireAgain(0, 0, failure=msgspec.structs.replace(failure, attempt=2**40)),
            wire.WireFinish(JobState.DONE, b"", 2**62),
            wire.WireFinish(JobState.DONE, b"", -1),
            wire.WireFinish(JobState.DEAD, failures=2**40),
            wire.WireFinish(JobState.RUNNING),
        ]
        for each in bad:
            answer = await call(http, "settle", asked.token, [(0, each)])
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_value"), (each, answer.text)
        for position in (-1, 2**31, 2**62):
            moved = await call(http, "detach", asked.token, position, new_token())
            assert wire.read_answer(wire.VERBS["detach"], moved.content) is False
        good = await call(http, "settle", asked.token, [(0, wire.WireFinish(JobState.DEAD, failure=failure))])
        assert wire.read_answer(wire.VERBS["settle"], good.content) == frozenset()
        assert (await http.get(f"/v1/jobs/{job_id(batch.id, 0)}")).json()["state"] == "dead"
        await well(http)


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_nobody_writes_the_audit_log_but_the_server(server: Running) -> None:
    async with server.client(await server.token("admin")) as http:
        for kind, name in (("audit", "2026-01-01"), ("audit.2026-01-01", "x")):
            assert (await call(http, "record", kind, name, b"", None)).status_code == 404
        assert await server.store.records("audit") == {}


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_tokens_through_the_store_are_entered(server: Running) -> None:
    async with server.client(await server.token("admin", name="ops")) as http:
        for value in (b"", b"\x80", b"\xc1"):
            assert (await call(http, "record", "token", "0123456789ab", value, None)).status_code == 422
        now = await server.store.now()
        bound: dict[str, Any] = {"queues": frozenset({"mail"}), "tenant": "acme", "expires_at": now + timedelta(days=1)}
        token = tokens.Token(
            id="0123456789ab", name="ci", sha256=b"", scopes=frozenset({Scope.WORK}), created_at=now, **bound
        )
        made = await call(http, "record", "token", token.id, msgspec.msgpack.encode(token), None)
        version = wire.read_answer(wire.VERBS["record"], made.content)
        assert (
            await call(http, "record", "token", str(uuid4()), msgspec.msgpack.encode(token), None)
        ).status_code == 422
        revoked = msgspec.msgpack.encode(msgspec.structs.replace(token, revoked_at=now))
        assert (await call(http, "record", "token", token.id, revoked, version)).status_code == 200
        entries = (await http.get("/v1/audit")).json()["items"]
    assert [(each["who"], each["action"]) for each in entries] == [("ops", "tokens.revoke"), ("ops", "tokens.create")]
    assert entries[1]["what"] == (
        f"ci (0123456789ab): work; tenant acme; queues mail; until {now + timedelta(days=1):%Y-%m-%d %H:%M} UTC"
    )
