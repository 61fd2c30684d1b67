"""Tokens over HTTP: made once, listed without their secrets, revoked at once; for admins of everything only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from headrace.operate import tokens
from headrace.store.audit import Audit
from server.running import Running


@pytest.fixture
def store_name() -> str:
    return "memory"


@pytest.fixture
async def admin(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with server.client(await server.token("admin", name="ann")) as client:
        yield client


async def test_a_token_is_made_used_and_revoked(server: Running, admin: httpx2.AsyncClient) -> None:
    wanted = {"name": "ci", "scopes": ["read", "enqueue"], "queues": ["mail"], "tenant": "acme", "expires": "90d"}
    answer = await admin.post("/v1/tokens", json=wanted)
    assert answer.status_code == 201
    created = answer.json()
    text = created.pop("token")
    assert (created["name"], created["scopes"], created["state"]) == ("ci", ["enqueue", "read"], "good")
    assert (created["queues"], created["tenant"]) == (["mail"], "acme")
    async with server.client(text) as client:
        assert (await client.get("/v1/jobs")).status_code == 200, "at once"
        listing = await admin.get("/v1/tokens")
        assert created in listing.json()["items"]
        assert text.rpartition("_")[2] not in listing.text
        assert "sha256" not in listing.text
        revoked = await admin.delete(f"/v1/tokens/{created['id']}")
        assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
        assert (await client.get("/v1/jobs")).status_code == 401, "at once"
    since = min(token.created_at for token in await tokens.all(server.store))
    entries = await Audit(server.store).read(since)
    assert [(entry.who, entry.action) for entry in entries] == [("ann", "tokens.revoke"), ("ann", "tokens.create")]
    assert text.rpartition("_")[2] not in str(entries)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "-", "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["read"], "queues": ["a b"]},
        {"name": "x", "scopes": ["read"], "tenant": "\u0000"},
        {"name": "x", "scopes": ["read"], "expires": "soon"},
        {"name": "x", "scopes": ["read"], "expires": "999999999d"},
        {"name": "ann", "scopes": ["read"]},
    ],
    ids=str,
)
async def test_a_wrong_request_makes_none(server: Running, admin: httpx2.AsyncClient, body: dict[str, object]) -> None:
    before = await tokens.all(server.store)
    assert (await admin.post("/v1/tokens", json=body)).status_code == 422
    assert await tokens.all(server.store) == before


async def test_another_id_is_no_token(admin: httpx2.AsyncClient) -> None:
    answer = await admin.delete("/v1/tokens/ann")
    assert (answer.status_code, answer.json()["code"]) == (404, "token_not_found")


@pytest.mark.parametrize("bound", [{"tenant": "acme"}, {"queues": ["mail"]}], ids=str)
async def test_a_bound_admin_sees_and_makes_no_tokens(server: Running, bound: dict[str, Any]) -> None:
    """Otherwise it could make a token that is not bound."""
    async with server.client(await server.token("admin", **bound)) as client:
        [own] = await tokens.all(server.store)
        for answer in (
            await client.get("/v1/tokens"),
            await client.post("/v1/tokens", json={"name": "x", "scopes": ["admin"]}),
            await client.delete(f"/v1/tokens/{own.id}"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert [token.revoked_at for token in await tokens.all(server.store)] == [None]


async def test_the_first_token_closes_the_server(server: Running) -> None:
    answer = await server.http.post("/v1/tokens", json={"name": "ann", "scopes": ["admin"]})
    assert answer.status_code == 201
    assert (await server.http.get("/v1/tokens")).status_code == 401
