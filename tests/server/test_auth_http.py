"""Tokens over a real connection: what is answered, what is logged, and whose leases are whose."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import httpx2
import pytest

from headrace.model.job import JobId, JobState
from headrace.operate import tokens
from headrace.server.auth import Brake
from server.running import Running
from server.security import sent


@pytest.fixture
def store_name() -> str:
    return "memory"


async def raw(server: Running, *headers: bytes, target: bytes = b"/v1/queues") -> bytes:
    """The whole answer to a request of raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        lines = [b"GET " + target + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close", *headers, b"", b""]
        writer.write(b"\r\n".join(lines))
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def make(server: Running, name: str, *scopes: str, **bound: Any) -> httpx2.AsyncClient:
    text, _ = await tokens.create(server.store, name, scopes=scopes, **bound)
    return server.client(text)


@pytest.fixture
async def admin(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with await make(server, "admin", "admin") as client:
        yield client


@pytest.mark.parametrize(
    "value",
    [b"Bearer \xc3\xa9", b"Bearer \xe9", b"Bearer \xff\xfe\xfd", b"Bearer", b"bearer  ", b"Bearer hr_\xe9_x", b"\xe9"],
)
async def test_s29_signs_beyond_ascii_are_no_fault_of_the_server(
    server: Running, admin: httpx2.AsyncClient, value: bytes
) -> None:
    answer = await raw(server, b"Authorization: " + value)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 "), answer
    assert b"www-authenticate: bearer" in head.lower()
    assert json.loads(body)["code"] == "unauthorized"
    assert (await admin.get("/v1/queues")).status_code == 200


async def test_s39_a_token_in_the_url_is_refused_and_not_logged(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text, _ = await tokens.create(server.store, "admin", scopes=["admin"])
    for name in ("token", "access_token"):
        reply = await server.http.get(f"/v1/queues?{name}={text}")
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert text not in reply.text
    async with server.client(text) as client:
        assert (await client.get("/v1/queues")).status_code == 200
    ours = [record for record in caplog.records if not record.name.startswith(("httpx2", "httpcore2"))]
    assert [record for record in ours if record.name == "headrace.access"]
    assert not [record for record in ours if text in record.getMessage() or text in str(record.__dict__)]


async def test_many_wrong_tokens(server: Running, admin: httpx2.AsyncClient) -> None:
    server.service.auth._brake = Brake(20, lambda: 1000.0)  # all of them in one moment, however slow this machine is
    async with server.client("hr_000000000000_" + "a" * 27) as client:
        replies = [await client.get("/v1/queues") for _ in range(25)]
    statuses = [reply.status_code for reply in replies]
    assert statuses[:20] == [401] * 20
    assert set(statuses[20:]) == {429}
    assert 1 <= int(replies[-1].headers["retry-after"]) <= 60
    assert replies[-1].json()["code"] == "too_many_failures"
    assert (await admin.get("/v1/queues")).status_code == 200


async def test_a_page_of_another_site_cannot_use_this_machine(server: Running) -> None:
    for headers in ({"Origin": "https://evil"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
        reply = await server.http.post("/v1/queues/mail/pause", headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (403, "csrf")
    assert (await server.http.get("/v1/queues", headers={"Host": "evil.example"})).status_code == 421
    assert await server.store.pauses() == []
    reply = await server.http.post("/v1/queues/mail/pause", headers={"Sec-Fetch-Site": "same-origin"})
    assert reply.status_code == 200


# ── leases ───────────────────────────────────────────────────────────────────


@pytest.fixture
async def crew(server: Running) -> AsyncIterator[dict[str, httpx2.AsyncClient]]:
    """Clients with tokens that are bound to different things."""
    bound: dict[str, dict[str, Any]] = {
        "t1": {"tenant": "t1"},
        "t2": {"tenant": "t2"},
        "free": {},
        "mail": {"queues": ["mail"]},
    }
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(await make(server, name, "work", "enqueue", **to))
            for name, to in bound.items()
        }


async def test_s33_s36_a_lease_is_worth_nothing_to_another(
    server: Running, crew: dict[str, httpx2.AsyncClient]
) -> None:
    made = await crew["t2"].post("/v1/jobs", json={"task": "add", "args": [1]})
    lease = (await crew["t2"].post("/v1/claim", json={"queues": ["default"]})).json()["lease"]
    (before,) = await server.store.get([JobId(UUID(made.json()["id"]))])
    assert before is not None
    assert (before.state, before.tenant) == (JobState.RUNNING, "t2")
    edited = ("0" if lease[0] != "0" else "1") + lease[1:]
    signed_wrongly = lease[:-1] + ("0" if lease[-1] != "0" else "1")
    for name, theirs in [
        ("t1", lease),
        ("mail", lease),
        ("free", lease),
        ("t2", edited),
        ("t2", signed_wrongly),
        ("t2", "f" * len(lease)),
        ("t2", lease.partition(".")[0]),
        ("t2", ""),
        ("t2", "é"),
    ]:
        calls: dict[str, Any] = {
            "/v1/settle": {
                "lease": theirs,
                "settlements": [{"position": 0, "id": made.json()["id"], "outcome": "succeeded"}],
            },
            "/v1/heartbeat": {"leases": [theirs]},
            "/v1/progress": {"lease": theirs, "position": 0, "progress": 0.5},
            "/v1/log": {"lease": theirs, "position": 0, "lines": ["x"]},
        }
        for path, body in calls.items():
            reply = await crew[name].post(path, json=body)
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found"), (name, path, reply.text)
    assert await server.store.get([before.id]) == [before]
    ours = {"lease": lease, "settlements": [{"position": 0, "id": made.json()["id"], "outcome": "succeeded"}]}
    assert (await crew["t2"].post("/v1/settle", json=ours)).status_code == 200


async def test_an_old_protocol_is_a_proxys(server: Running) -> None:
    """The HTTP version that nginx uses for its upstream by default."""
    answer = await sent.raw(server, b"GET /v1/jobs HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b" 401 " in answer.split(b"\r\n")[0]
    assert b" 200 " in (await sent.raw(server, b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")).split(b"\r\n")[0]


async def test_s31_a_queue_of_others_cannot_be_claimed(crew: dict[str, httpx2.AsyncClient]) -> None:
    await crew["free"].post("/v1/jobs", json={"task": "add", "args": [1]})
    reply = await crew["mail"].post("/v1/claim", json={"queues": ["default"]})
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert (await crew["t1"].post("/v1/claim", json={"queues": ["default"]})).status_code == 204
    assert (await crew["free"].post("/v1/claim", json={"queues": ["default"]})).status_code == 200
