"""Which callers are accepted, which are refused, and with what message."""

from __future__ import annotations

import asyncio
import hmac
from datetime import timedelta
from typing import Any

import pytest
from starlette.requests import Request

from headrace.model.records import Record
from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.server import auth as auth_module
from headrace.server.auth import LOCAL, Auth, Brake, Principal, address_of, check_origin
from headrace.server.http.problems import Problem
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

HERE, THERE = "127.0.0.1", "203.0.113.9"


@pytest.fixture
def store_name() -> str:
    return "memory"


@pytest.fixture
def auth(store: Store, clock: FakeClock) -> Auth:
    return Auth(store, clock=clock.monotonic)


def request(*headers: tuple[str, str | bytes], client: str | None = THERE, query: bytes = b"") -> Request:
    raw = [(b"host", b"127.0.0.1:8200")] if not any(name == "host" for name, _ in headers) else []
    raw += [(name.encode(), value if isinstance(value, bytes) else value.encode("latin-1")) for name, value in headers]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/v1/jobs",
            "query_string": query,
            "headers": raw,
            "client": None if client is None else (client, 50000),
        }
    )


def bearer(text: str | bytes, **more: Any) -> Request:
    raw = text if isinstance(text, bytes) else text.encode()
    return request(("authorization", b"Bearer " + raw), **more)


async def refused(auth: Auth, call: Request, status: int = 401) -> Problem:
    with pytest.raises(Problem) as caught:
        await auth.principal(call)
    assert caught.value.status == status
    if status == 401:
        assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    return caught.value


# ── tokens ───────────────────────────────────────────────────────────────────


async def test_a_good_token(store: Store, auth: Auth) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["work", "read"], queues=["mail"], tenant="acme")
    found = await auth.principal(bearer(text))
    assert found == Principal("ci", frozenset({Scope.WORK, Scope.READ}), frozenset({"mail"}), "acme")
    assert await auth.principal(request(("authorization", f"bEARER   {text} "))) == found


def _changed(text: str, at: int) -> str:
    return text[:at] + ("a" if text[at] != "a" else "b") + text[at + 1 :]


async def test_bad_tokens(store: Store, auth: Auth) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    bad: list[str | bytes] = [
        _changed(text, len(text) - 1),
        text[:-1],
        text + "a",
        _changed(text, 4),
        "hr_000000000000_" + "a" * 27,
        "random",
        "",
        "é",
        "é".encode("latin-1"),
        b"\xff\xfe\x00",
        text.replace("_", "é"),
        "a" * 30_000,
    ]
    for each in bad:
        await refused(auth, bearer(each, client=None))
        auth._brake = Brake(20, auth._clock)
    for value in (text, f"Basic {text}", f"Token {text}", "Bearer", f"Bearer{text}", f"Bearer {text} {text}"):
        await refused(auth, request(("authorization", value)))
    await refused(auth, request(("authorization", f"Bearer {text}"), ("authorization", "Bearer x")))
    await refused(auth, request())
    assert (await auth.principal(bearer(text))).name == "ci"


async def test_an_expired_token(store: Store, auth: Auth, clock: FakeClock) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"], expires="1h")
    clock.advance(timedelta(minutes=59, seconds=59, milliseconds=500))
    assert (await auth.principal(bearer(text))).name == "ci"
    clock.advance(0.5)  # the tokens are still known from memory, but time is not
    await refused(auth, bearer(text))


async def test_a_revoked_token_stops_within_a_second(store: Store, auth: Auth, clock: FakeClock) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    await auth.principal(bearer(text))
    await tokens.revoke(store, "ci")
    clock.advance(1)
    await refused(auth, bearer(text))


async def test_a_new_token_works_within_a_second(store: Store, auth: Auth, clock: FakeClock) -> None:
    await tokens.create(store, "first", scopes=["read"])
    await refused(auth, request())
    text, _ = await tokens.create(store, "second", scopes=["read"])
    clock.advance(1)
    assert (await auth.principal(bearer(text))).name == "second"


async def test_the_store_is_asked_once_a_second_however_many_call(
    store: Store, auth: Auth, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    asked = 0
    look = store.records

    async def counted(kind: str) -> dict[str, Record]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return await look(kind)

    monkeypatch.setattr(store, "records", counted)
    for seconds in range(1, 4):
        await asyncio.gather(*(auth.principal(bearer(text)) for _ in range(100)))
        assert asked == seconds
        clock.advance(1)


async def test_s30_a_constant_time_comparison_decides(
    store: Store, auth: Auth, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, token = await tokens.create(store, "ci", scopes=["read"])
    seen: list[tuple[bytes, bytes]] = []
    answers = [True, False]

    def compare(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return answers.pop(0)

    monkeypatch.setattr(auth_module.hmac, "compare_digest", compare)
    wrong = text[:-1] + ("a" if text[-1] != "a" else "b")
    assert (await auth.principal(bearer(wrong))).name == "ci"  # because it said so
    await refused(auth, bearer(text))  # because it said so
    assert seen == [(tokens.digest(wrong.encode()), token.sha256), (tokens.digest(text.encode()), token.sha256)]

    # One that is not there at all, or is none, is compared, too: with what no text hashes to.
    answers = [True, True]
    await refused(auth, bearer("hr_000000000000_" + "a" * 27))
    await refused(auth, bearer("é"))
    assert len(seen) == 4
    assert all(isinstance(each, bytes) and len(each) == 32 for pair in seen for each in pair)
    assert hmac.compare_digest is compare


async def test_a_token_in_the_url_is_refused(store: Store, auth: Auth) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    for query in (f"token={text}", f"a=1&access_token={text}", f"to%6ben={text}", "token="):
        for call in (request(query=query.encode()), bearer(text, query=query.encode())):
            problem = await refused(auth, call)
            assert text not in problem.detail
            assert text.encode() not in call.scope["query_string"]  # so that no later code can log it
    assert (await auth.principal(bearer(text, query=b"tokens=1&q=token"))).name == "ci"


async def test_unreadable_tokens_close_the_door_and_open_none(store: Store, auth: Auth) -> None:
    await store.record("token", "0123456789ab", b"\xc1 from the future", None)
    await refused(auth, request(client=HERE))
    await refused(auth, bearer("hr_0123456789ab_" + "a" * 27))


# ── without tokens ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("client", [HERE, "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1:8200", "localhost", "[::1]:8200", "LOCALHOST:80", "127.9.9.9"])
async def test_this_machine_is_let_in(auth: Auth, client: str, host: str) -> None:
    found = await auth.principal(request(("host", host), client=client))
    assert found is LOCAL
    assert all(found.may(scope) for scope in Scope)


@pytest.mark.parametrize("client", [THERE, "192.168.0.7", "2001:db8::1", "::ffff:203.0.113.9", None, "testclient"])
async def test_others_are_not(auth: Auth, client: str | None) -> None:
    assert "tokens create" in (await refused(auth, request(client=client))).detail


@pytest.mark.parametrize(
    "header", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-proto", "x-forwarded-host"]
)
async def test_those_behind_a_proxy_on_this_machine_are_not(auth: Auth, header: str) -> None:
    await refused(auth, request((header, "for=203.0.113.9"), client=HERE))


async def test_nor_behind_one_that_says_nothing(auth: Auth) -> None:
    """Some proxies add no header by default. Their HTTP version shows them."""
    call = request(client=HERE)
    call.scope["http_version"] = "1.0"
    await refused(auth, call)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8200", "[::1", "a.b", "intranet", "queue:80", "10.0.0.7", "0.0.0.0", ""],
)
async def test_s47_a_foreign_name_for_this_machine_is_not(auth: Auth, host: str) -> None:
    problem = await refused(auth, request(("host", host), client=HERE), 421)
    assert problem.code == "host_not_allowed"


async def test_the_name_that_the_server_is_bound_to_is_its_own(store: Store, clock: FakeClock) -> None:
    auth = Auth(store, host="queue", clock=clock.monotonic)
    assert await auth.principal(request(("host", "queue:8200"), client=HERE)) is LOCAL
    await refused(auth, request(("host", "intranet"), client=HERE), 421)
    for everywhere in ("0.0.0.0", "::"):
        auth = Auth(store, host=everywhere, clock=clock.monotonic)
        await refused(auth, request(("host", everywhere if "." in everywhere else "[::]"), client=HERE), 421)


async def test_web_pages_of_others_are_not(auth: Auth) -> None:
    problem = await refused(auth, request(("origin", "https://evil.example"), client=HERE), 403)
    assert problem.code == "csrf"


async def test_revoking_the_last_token_lets_nobody_in(store: Store, auth: Auth) -> None:
    await tokens.create(store, "ci", scopes=["read"])
    await tokens.revoke(store, "ci")
    await refused(auth, request(client=HERE))


# ── other sites ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1:8200"}, False),
        ({"origin": "http://127.0.0.1:8200"}, True),
        ({"origin": "https://127.0.0.1:8200"}, True),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "https://evil"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://["}, False),
        ({"origin": "https://queue.example", "host": "QUEUE.example"}, True),
    ],
)
def test_s45_origins(headers: dict[str, str], good: bool) -> None:
    call = request(*headers.items())
    if good:
        check_origin(call)
    else:
        with pytest.raises(Problem) as caught:
            check_origin(call)
        assert (caught.value.status, caught.value.code) == (403, "csrf")


# ── failures ─────────────────────────────────────────────────────────────────


async def test_many_failures_are_slowed_down(store: Store, auth: Auth, clock: FakeClock) -> None:
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    for _ in range(20):
        await refused(auth, bearer("wrong"))
    problem = await refused(auth, bearer("wrong"), 429)
    assert (problem.code, problem.headers) == ("too_many_failures", {"Retry-After": "3"})
    assert (await auth.principal(bearer(text))).name == "ci"  # a neighbour behind the same address
    await refused(auth, bearer("wrong", client="203.0.113.10"))  # and other addresses
    await refused(auth, request())  # no token is no guess
    clock.advance(3)
    await refused(auth, bearer("wrong"))
    await refused(auth, bearer("wrong"), 429)
    clock.advance(60)
    for _ in range(20):
        await refused(auth, bearer("wrong"))
    await refused(auth, bearer("wrong"), 429)


def test_failures_take_bounded_memory(clock: FakeClock) -> None:
    brake = Brake(20, clock.monotonic, addresses=100)
    for number in range(1000):
        brake.press(str(number))
    assert len(brake._pace) == 100
    assert next(iter(brake._pace._free_at)) == "900"


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("nonsense", "?"),
        (None, "?"),
    ],
)
def test_addresses(client: str | None, address: str) -> None:
    assert address_of(request(client=client)) == address


# ── principals ───────────────────────────────────────────────────────────────


def test_what_a_principal_may() -> None:
    reader = Principal("r", frozenset({Scope.READ}))
    assert [scope for scope in Scope if reader.may(scope)] == [Scope.READ]
    admin = Principal("a", frozenset({Scope.ADMIN}))
    assert all(admin.may(scope) for scope in Scope)


@pytest.mark.parametrize(
    ("queues", "tenant", "seen"),
    [
        (
            None,
            None,
            {("mail", "acme"), ("mail", "zoo"), ("bill", "acme"), (None, "acme"), ("mail", None), (None, None)},
        ),
        (frozenset({"mail"}), None, {("mail", "acme"), ("mail", "zoo"), ("mail", None)}),
        (None, "acme", {("mail", "acme"), ("bill", "acme"), (None, "acme")}),
        (frozenset({"mail"}), "acme", {("mail", "acme")}),
    ],
)
def test_what_a_principal_sees(queues: frozenset[str] | None, tenant: str | None, seen: set[Any]) -> None:
    principal = Principal("p", frozenset({Scope.READ}), queues, tenant)
    everything = [("mail", "acme"), ("mail", "zoo"), ("bill", "acme"), (None, "acme"), ("mail", None), (None, None)]
    assert {pair for pair in everything if principal.sees(*pair)} == seen
    assert principal.bound == (seen != set(everything))
