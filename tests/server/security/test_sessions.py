"""Session cookies: what a browser gets for a token, which requests the cookie admits, and when it ends; S49."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from http.cookies import Morsel, SimpleCookie
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import Headrace
from headrace.operate import tokens
from headrace.server import asgi
from headrace.server.api.resources import ENDPOINTS
from headrace.server.auth import Brake
from headrace.server.sessions import COOKIE, LIFETIME, BrowserSession
from server.running import Running, running
from server.security.sent import refused

pytestmark = pytest.mark.usefixtures("unharmed")

OWN = {"Sec-Fetch-Site": "same-origin"}
EVIL: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil"},
    {"Origin": "null"},
]


@pytest.fixture
def store_name() -> str:
    return "memory"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def cookie_of(answer: httpx2.Response) -> Morsel[str]:
    [header] = answer.headers.get_list("set-cookie")
    return SimpleCookie(header)[COOKIE]


def carrying(value: str, **more: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={value}", **more}


async def sign_in(server: Running, token: str) -> str:
    """The value of a new session's cookie."""
    answer = await server.http.post("/v1/session", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    server.http.cookies.clear()
    return cookie_of(answer).value


@pytest.fixture
async def eyes(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with an admin's token, for what a test looks at besides."""
    async with server.client(await server.token("admin")) as client:
        yield client


# ── the cookie ───────────────────────────────────────────────────────────────


async def test_s49_a_script_and_another_site_never_get_the_cookie(server: Running) -> None:
    token = await server.token("read", "operate", name="ann", tenant="acme")
    answer = await server.http.post("/v1/session", headers=bearer(token))
    cookie = cookie_of(answer)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert not cookie["domain"]
    assert 0 < int(cookie["max-age"]) <= LIFETIME.total_seconds()
    assert not cookie["secure"], "a browser would drop it, because this server uses http"
    assert token not in cookie.value
    shown = answer.json()
    assert datetime.fromisoformat(shown.pop("expires_at")) > datetime.now(UTC)
    assert shown == {"name": "ann", "scopes": ["operate", "read"], "tenant": "acme", "queues": None}


@pytest.mark.parametrize("origin", [None, "https://queue.example"])
async def test_s49_the_cookie_stays_on_https_and_below_the_prefix(app: Headrace, origin: str | None) -> None:
    """Directly, and behind a proxy that ends TLS: there only the browser says that it uses https."""
    mounted = Starlette(routes=[Mount("/queue", inner := asgi(app))])
    scheme = "http" if origin else "https"
    try:
        service = await inner.service()
        token, _ = await tokens.create(service.store, "ann", scopes=["read"])
        transport = httpx2.ASGITransport(app=mounted)
        async with httpx2.AsyncClient(transport=transport, base_url=f"{scheme}://queue.example") as http:
            headers = bearer(token) | ({"Origin": origin} if origin else {})
            cookie = cookie_of(await http.post("/queue/v1/session", headers=headers))
            assert (cookie["secure"], cookie["path"]) == (True, "/queue")
    finally:
        await inner.aclose()
        await app.aclose()


async def test_s49_each_sign_in_is_another_session(server: Running) -> None:
    token = await server.token("read")
    assert await sign_in(server, token) != await sign_in(server, token)


async def test_s49_a_session_does_not_renew_itself(server: Running) -> None:
    value = await sign_in(server, await server.token("read"))
    refused(await server.http.post("/v1/session", headers=carrying(value, **OWN)), 401, "unauthorized")


async def test_without_tokens_there_is_nothing_to_sign_in_to(server: Running) -> None:
    for answer in (await server.http.get("/v1/session"), await server.http.post("/v1/session")):
        assert answer.json()["name"] == "local"
        assert answer.json()["expires_at"] is None
        assert "set-cookie" not in answer.headers
    assert (await server.http.delete("/v1/session")).status_code == 204


# ── what it admits ───────────────────────────────────────────────────────────


async def test_s49_a_session_may_do_what_its_token_may(server: Running) -> None:
    value = await sign_in(server, await server.token("read", name="ann"))
    shown = await server.http.get("/v1/session", headers=carrying(value))
    assert (shown.json()["name"], shown.json()["scopes"]) == ("ann", ["read"])
    assert shown.json()["expires_at"] is not None
    assert (await server.http.get("/v1/queues", headers=carrying(value))).status_code == 200
    missing = await server.http.post("/v1/queues/mail/pause", headers=carrying(value, **OWN))
    refused(missing, 403, "missing_scope")
    async with server.client(await server.token("operate", name="bob")) as client:
        # A token in the header is the caller, whatever cookie the request carries.
        assert (await client.get("/v1/session", headers=carrying(value))).json()["name"] == "bob"


async def test_s49_a_session_of_a_tenant_sees_that_tenant_only(server: Running, eyes: httpx2.AsyncClient) -> None:
    for shop in ("acme", "other"):
        await eyes.post("/v1/jobs", json={"task": "charge", "kwargs": {"order": 7, "shop": shop}})
    value = await sign_in(server, await server.token("read", tenant="acme"))
    jobs = (await server.http.get("/v1/jobs", headers=carrying(value))).json()["items"]
    assert [job["tenant"] for job in jobs] == ["acme"]
    others = (await eyes.get("/v1/jobs", params={"tenant": "other"})).json()["items"][0]["id"]
    refused(await server.http.get(f"/v1/jobs/{others}", headers=carrying(value)), 404, "job_not_found")


@pytest.mark.parametrize("evil", EVIL, ids=str)
async def test_s45_pages_of_others_use_no_session(
    server: Running, eyes: httpx2.AsyncClient, evil: dict[str, str]
) -> None:
    value = await sign_in(server, await server.token("admin"))
    for endpoint in ENDPOINTS:
        if endpoint.scope is not None:
            path = endpoint.path.replace("{id}", "something").replace("{name}", "something")
            answer = await server.http.request(endpoint.method, path, headers=carrying(value, **evil), json={})
            refused(answer, 403, "csrf")
    assert (await eyes.get("/v1/pauses")).json()["items"] == []


async def test_s45_a_change_by_cookie_says_where_it_comes_from(server: Running) -> None:
    """Every browser says so. A request that does not may come from an old browser, for another site."""
    value = await sign_in(server, await server.token("admin"))
    refused(await server.http.post("/v1/queues/mail/pause", headers=carrying(value)), 403, "csrf")
    assert (await server.http.get("/v1/queues", headers=carrying(value))).status_code == 200
    for own in (OWN, {"Origin": server.url}):
        assert (await server.http.post("/v1/queues/mail/pause", headers=carrying(value, **own))).status_code == 200


# ── how it ends ──────────────────────────────────────────────────────────────


async def gone(server: Running, value: str) -> None:
    answer = await server.http.get("/v1/queues", headers=carrying(value))
    refused(answer, 401, "unauthorized")
    assert "sign in again" in answer.json()["detail"]


@pytest.mark.parametrize("forget", [False, True])
async def test_s49_a_revoked_token_ends_its_sessions(server: Running, forget: bool) -> None:
    await server.token("read")
    value = await sign_in(server, await server.token("admin", name="ann"))
    await tokens.revoke(server.store, "ann", forget=forget)
    server.service.auth.forget()
    await gone(server, value)


async def test_s49_a_signed_out_session_is_over_on_every_server(server: Running) -> None:
    token = await server.token("read")
    value, other = await sign_in(server, token), await sign_in(server, token)
    async with running(Headrace(server.app.settings.url), store=server.store) as second:
        assert (await second.http.get("/v1/session", headers=carrying(value))).status_code == 200
        answer = await server.http.delete("/v1/session", headers=carrying(value, **OWN))
        assert (answer.status_code, cookie_of(answer)["max-age"], cookie_of(answer).value) == (204, "0", "")
        await gone(server, value)
        second.service.auth.forget()
        await gone(second, value)
        assert (await server.http.get("/v1/queues", headers=carrying(other))).status_code == 200
        assert (await server.http.get("/v1/queues", headers=bearer(token))).status_code == 200


async def test_s49_what_was_signed_out_is_kept_for_a_while_only(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "SIGNED_OUT", 3)
    _, stored = await tokens.create(server.store, "ann", scopes=["read"])
    now = await server.store.now()
    for minutes in (-1, 5, 2, 3, 4):
        await tokens.sign_out(server.store, stored.id, f"s{minutes}", now + timedelta(minutes=minutes))
    [kept] = await tokens.all(server.store)
    assert set(kept.signed_out) == {"s3", "s4", "s5"}, "those that would last longest"


def ended(server: Running, token_id: str) -> str:
    signer = server.service.auth._signer
    assert signer is not None
    return signer.seal(BrowserSession("0" * 32, token_id, datetime.now(UTC) - timedelta(seconds=2)))


async def test_s49_a_session_ends_by_itself_and_with_its_token(server: Running) -> None:
    text = await server.token("read", expires="10m")
    [stored] = await tokens.all(server.store)
    await gone(server, ended(server, stored.id))
    answer = await server.http.post("/v1/session", headers=bearer(text))
    assert stored.expires_at is not None
    assert datetime.fromisoformat(answer.json()["expires_at"]) <= stored.expires_at
    assert int(cookie_of(answer)["max-age"]) <= 600


# ── what is no session ───────────────────────────────────────────────────────


def _other_token(value: str) -> str:
    return "a" * 12 + value[12:]


def _longer(value: str) -> str:
    token, id, end, sign = value.split(".")
    return ".".join([token, id, str(int(end) + 1), sign])


WRONG: list[Callable[[str], str]] = [
    _other_token,
    _longer,
    lambda value: value[:-1] + ("a" if value[-1] != "a" else "b"),
    lambda value: value.rpartition(".")[0],
    lambda value: "",
    lambda value: "x" * 5000,
    lambda value: value + "\xe9",
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_s49_a_changed_cookie_is_worth_nothing(server: Running, wrong: Callable[[str], str]) -> None:
    value = await sign_in(server, await server.token("admin"))
    header: Any = f"{COOKIE}={wrong(value)}".encode("latin-1")
    refused(await server.http.get("/v1/queues", headers={"Cookie": header}), 401, "unauthorized")
    both: Any = header + f"; {COOKIE}={value}".encode()
    assert (await server.http.get("/v1/queues", headers={"Cookie": both})).status_code == 200, "two servers on one host"


async def test_s49_wrong_cookies_are_limited_like_wrong_tokens(server: Running) -> None:
    token = await server.token("read")
    server.service.auth._brake = Brake(3, lambda: 0.0)
    statuses = [(await server.http.get("/v1/queues", headers=carrying("wrong"))).status_code for _ in range(5)]
    assert statuses == [401, 401, 401, 429, 429]
    for _ in range(3):
        refused(await server.http.post("/v1/session", headers=bearer("hr_wrong")), 429, "too_many_failures")
    value = await sign_in(server, token)
    assert (await server.http.get("/v1/queues", headers=carrying(value))).status_code == 200
