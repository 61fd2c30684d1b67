"""What each token may do to which tenant's jobs; S28 to S39."""

from __future__ import annotations

import gc
import hashlib
import math
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.operate import tokens
from headrace.server import ServerSettings
from headrace.server.auth import Brake
from headrace.server.http import routes
from headrace.store.contract import Store
from headrace.store.http import wire
from server.running import Running, running
from server.security.sent import jobs, raw, refused, status_of

pytestmark = pytest.mark.usefixtures("unharmed")


# ── tokens ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/claim", "/v1/nothing", "/v1/", "/v1/jobs/a/b", "/v1/store/get"])
async def test_s28_without_a_token(server: Running, path: str) -> None:
    await server.token("admin")
    for method in ("GET", "POST", "DELETE", "PUT"):
        answer = await server.http.request(method, path)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


async def expired(store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token whose time is over."""
    now: datetime = await store.now()

    async def before() -> datetime:
        return now - timedelta(hours=2)

    with monkeypatch.context() as patch:
        patch.setattr(store, "now", before)
        return (await tokens.create(store, "expired", scopes=["admin"], expires="1h"))[0]


def changed(text: str, place: int) -> str:
    """Another letter at this place."""
    return text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]


async def test_s29_tokens_that_are_not_good(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    late = await expired(server.store, monkeypatch)
    gone, _ = await tokens.create(server.store, "gone", scopes=["admin"])
    await tokens.revoke(server.store, "gone")
    good = await server.token("admin")
    bad = ["random", "hr_000000000000_" + "a" * 27, late, gone, *(changed(good, at) for at in (0, 3, 8, 16, 20, 42))]
    given = [each.encode() for each in bad] + ["é".encode(), b"\xe9", b"", b"\xff\xfe"]
    for text in given:
        head = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %b\r\n\r\n"
        answer = await raw(server, head % text)
        assert status_of(answer) == 401, text
        assert b"\r\nwww-authenticate: Bearer\r\n" in answer
        assert b'"code":"unauthorized"' in answer
    async with server.client(good) as client:
        assert (await client.get("/v1/jobs")).status_code == 200


@pytest.mark.parametrize("size", [1_000_000, 1024 * 1024])
async def test_s29_a_header_of_a_megabyte(server: Running, size: int) -> None:
    await server.token("admin")
    for _ in range(5):
        answer = await raw(
            server, b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % (b"a" * size)
        )
        assert status_of(answer) == 431
        assert b'"code":"headers_too_large"' in answer


def steps(work: Callable[[], Any]) -> list[str]:
    """Every call that this makes, of Python's own functions too, in order."""
    seen: list[str] = []

    def note(frame: Any, event: str, what: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)
        elif event == "c_call":
            seen.append(what.__qualname__)

    gc.disable()  # what others left behind would be counted if it ended just now
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


async def test_s30_every_wrong_token_takes_the_same_steps(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes is measured by `python -m benchmarks.http.timing`."""
    good = await server.token("admin")
    auth = server.service.auth
    await auth._refresh()
    monkeypatch.setattr(auth, "_brake", Brake(1_000_000, auth._clock))

    async def unasked(kind: str) -> None:
        raise AssertionError(f"the store was asked for every {kind}")

    monkeypatch.setattr(server.store, "records", unasked)

    def refused_by(text: str) -> list[str]:
        return steps(lambda: auth._look_up(text.encode()))

    first, last = changed(good, 16), changed(good, 42)
    assert first[:16] == last[:16] == good[:16]
    assert refused_by(first) == refused_by(last) == refused_by(changed(good, 25))
    # The two sides of the comparison are digests: nothing of the token itself decides how soon they differ.
    assert refused_by(first).count("compare_digest") == refused_by(first).count("digest") == 1
    # An id that no token has is compared, too.
    unknown = refused_by(changed(good, 8))
    assert unknown == refused_by(first)
    assert auth._look_up(good.encode()) is not None


class Asked:
    """The verbs of a store that were called."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.verbs: list[str] = []
        for name in wire.VERBS.keys() - {"hello", "drop"}:
            monkeypatch.setattr(store, name, self._noting(name, getattr(store, name)))

    def _noting(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.verbs.append(name)
            return verb(*given, **named)

        return called

    def take(self) -> list[str]:
        found, self.verbs = [each for each in self.verbs if each not in NOT_ASKED], []
        return found


NOT_ASKED = frozenset({"now", "records", "promote", "reap", "wait", "prune", "workers", "heartbeat"})
"""Looked up once a second for all requests together, or by the server for itself."""


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_s32_a_strangers_job_takes_the_same_steps_as_none(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app, ServerSettings(port=0, tidy=False)) as server:
        theirs = await server.token("enqueue", "read", tenant="t2")
        mine = await server.token("read", "operate", tenant="t1")
        async with server.client(theirs) as two:
            id = (await two.post("/v1/jobs", json={"task": "echo"})).json()["id"]
        asked = Asked(server.store, monkeypatch)
        async with server.client(mine) as one:
            for method, path in (
                ("GET", ""),
                ("GET", "/explain"),
                ("POST", "/cancel"),
                ("POST", "/retry"),
                ("DELETE", ""),
            ):
                asked.take()
                of_theirs = await one.request(method, f"/v1/jobs/{id}{path}")
                for_theirs = asked.take()
                of_none = await one.request(method, f"/v1/jobs/01890a5d-ac96-774b-bcce-b302099a0001{path}")
                for_none = asked.take()
                refused(of_theirs, 404, "job_not_found")
                assert {**of_theirs.json(), "request_id": ""} == {**of_none.json(), "request_id": ""}
                assert for_theirs == for_none, (method, path)
                assert for_none, (method, path)


async def test_s32_nor_does_the_time_tell(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes is measured by `python -m benchmarks.http.timing`."""
    for spent in (0.0001, 0.0003, 0.0049, 0.0051, 1.0):
        ends = {round(spent + routes.levelled(spent), 9) for _ in range(100)}
        whole = math.ceil(spent / routes.LEVEL) * routes.LEVEL
        assert whole <= min(ends) < max(ends) <= whole + routes.SPREAD
    waited: list[float] = []

    def noted(spent: float) -> float:
        waited.append(spent)
        return 0

    monkeypatch.setattr(routes, "levelled", noted)
    theirs = await server.token("enqueue", "read", tenant="t2")
    mine = await server.token("read", tenant="t1")
    everybodys = await server.token("read")
    async with server.client(theirs) as two, server.client(mine) as one, server.client(everybodys) as all_:
        id = (await two.post("/v1/jobs", json={"task": "echo"})).json()["id"]
        for each in (id, "01890a5d-ac96-774b-bcce-b302099a0001"):
            for path in ("", "/explain", "/result", "/events"):
                refused(await one.get(f"/v1/jobs/{each}{path}"), 404, "job_not_found")
        assert len(waited) == 8
        # A caller that sees everything gets the plain answer.
        refused(await all_.get("/v1/jobs/01890a5d-ac96-774b-bcce-b302099a0001"), 404, "job_not_found")
        assert len(waited) == 8


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_s39_the_file_holds_no_token(server: Running, store_url: str) -> None:
    text = await server.token("admin")
    async with server.client(text) as client:
        assert (await client.get("/v1/jobs")).status_code == 200
    file = Path(store_url.removeprefix("sqlite:///"))
    kept = b"".join(each.read_bytes() for each in file.parent.glob(f"{file.name}*"))
    assert text.rpartition("_")[2].encode() not in kept
    assert hashlib.sha256(text.encode()).digest() in kept
    for name in ("token", "access_token"):
        refused(await server.http.get("/v1/jobs", params={name: text}), 401, "unauthorized")


# ── whose ────────────────────────────────────────────────────────────────────


async def test_s34_a_bound_token_says_whose_it_is(server: Running) -> None:
    mine = await server.token("enqueue", "read", "operate", tenant="t1")
    theirs = await server.token("enqueue", "read", "operate", tenant="t2")
    async with server.client(mine) as one, server.client(theirs) as two:
        refused(await one.post("/v1/jobs", json={"task": "echo", "tenant": "t2"}), 422, "tenant_not_allowed")
        refused(await one.post("/v1/jobs", json={"task": "echo", "tenant": "t1"}), 422, "tenant_not_allowed")
        batch = {"jobs": [{"task": "echo"}, {"task": "echo", "tenant": "t2"}]}
        refused(await one.post("/v1/jobs/batch", json=batch), 422, "tenant_not_allowed")
        made = await one.post("/v1/jobs", json={"task": "echo"}, headers={"X-Tenant": "t2"})
        charged = await one.post("/v1/jobs", json={"task": "charge", "args": [7, "t2"]})
        for answer in (made, charged):
            assert answer.status_code == 201
            assert (await one.get(f"/v1/jobs/{answer.json()['id']}")).json()["tenant"] == "t1"
        id = made.json()["id"]
        random = "01890a5d-ac96-774b-bcce-b302099a0001"
        for method, path in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/retry"), ("DELETE", "")):
            seen = await two.request(method, f"/v1/jobs/{id}{path}")
            unknown = await two.request(method, f"/v1/jobs/{random}{path}")
            refused(seen, 404, "job_not_found")
            assert {**seen.json(), "request_id": ""} == {**unknown.json(), "request_id": ""}
        bulk = await two.post("/v1/jobs/bulk", json={"action": "cancel", "ids": [id, random]})
        assert bulk.json() == {"found": 0, "changed": 0, "more": False, "next": None}
        everything = await two.post("/v1/jobs/bulk", json={"action": "delete", "everything": True})
        assert everything.json()["found"] == 0
        assert (await two.get("/v1/jobs")).json()["items"] == []
        assert (await two.get("/v1/jobs", params={"tenant": "t1"})).json()["items"] == []
        assert len((await one.get("/v1/jobs")).json()["items"]) == 2
        assert (await two.get("/v1/queues")).json() == {"items": [], "next": None}
        refused(await two.post("/v1/queues/default/pause"), 404, "not_found")
        assert (await one.get(f"/v1/jobs/{id}")).json()["state"] == "ready"


async def test_s34_a_tenants_keys_are_its_own(server: Running) -> None:
    mine = await server.token("enqueue", tenant="t1")
    theirs = await server.token("enqueue", tenant="t2")
    async with server.client(mine) as one, server.client(theirs) as two:
        first = await one.post("/v1/jobs", json={"task": "echo", "args": [1], "key": "k"})
        other = await two.post("/v1/jobs", json={"task": "echo", "args": [2], "key": "k"})
        again = await one.post("/v1/jobs", json={"task": "echo", "args": [1], "key": "k"})
    assert [first.status_code, other.status_code, again.status_code] == [201, 201, 200]
    assert first.json() == again.json() != other.json()


@pytest.mark.parametrize("sign", [":", "/", "|", "-"])
async def test_s34_no_tenant_and_key_read_as_another_tenant_and_key(server: Running, sign: str) -> None:
    mine = await server.token("enqueue", tenant="a")
    theirs = await server.token("enqueue", tenant=f"a{sign}b")
    async with server.client(mine) as one, server.client(theirs) as two:
        first = await one.post("/v1/jobs", json={"task": "echo", "args": [1], "key": f"b{sign}c"})
        other = await two.post("/v1/jobs", json={"task": "echo", "args": [2], "key": "c"})
    assert [first.status_code, other.status_code] == [201, 201], other.text


async def test_s34_a_token_of_one_queue_sees_that_queue(server: Running) -> None:
    token = await server.token("enqueue", "read", "operate", queues=["billing"])
    default = await server.service.client.put(server.app.tasks["echo"].job(1).job)
    async with server.client(token) as client:
        assert (await client.post("/v1/jobs", json={"task": "charge", "args": [1, "a"]})).status_code == 201
        refused(await client.post("/v1/jobs", json={"task": "echo"}), 422, "unknown_task")
        refused(await client.post("/v1/jobs", json={"task": "echo", "queue": "default"}), 404, "not_found")
        assert (await client.post("/v1/jobs", json={"task": "echo", "queue": "billing"})).status_code == 201
        refused(await client.get(f"/v1/jobs/{default}"), 404, "job_not_found")
        assert len((await client.get("/v1/jobs")).json()["items"]) == 2
        assert [each["name"] for each in (await client.get("/v1/queues")).json()["items"]] == ["billing"]
        assert [each["name"] for each in (await client.get("/v1/tasks")).json()["items"]] == ["charge"]
        refused(await client.post("/v1/queues/default/pause"), 404, "not_found")
        assert (await client.post("/v1/queues/billing/pause")).status_code == 200


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"attempts": -5}, "unknown_field"),
        ({"state": "completed"}, "unknown_field"),
        ({"id": "01890a5d-ac96-774b-bcce-b302099a0001"}, "unknown_field"),
        ({"max_attempts": 999_999}, "invalid_max_attempts"),
        ({"max_attempts": 0}, "invalid_max_attempts"),
        ({"priority": 1e9}, "invalid_field"),
        ({"priority": 10**9}, "invalid_priority"),
        ({"priority": 10**30}, "invalid_priority"),
        ({"timeout": "-1s"}, "invalid_duration"),
        ({"timeout": "0s"}, "invalid_duration"),
        ({"expires": "yesterday"}, "invalid_duration"),
        ({"deadline": "2030-13-01T00:00:00Z"}, "invalid_time"),
        ({"tenant": "a b"}, "invalid_tenant"),
    ],
)
async def test_s37_nothing_is_assigned_by_the_way(server: Running, field: dict[str, Any], code: str) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": "echo", **field}), 422, code)
    assert await jobs(server) == []


async def test_s38_a_key_makes_one_job(server: Running) -> None:
    asked = {"task": "echo", "args": [{"b": 1, "a": 2}], "key": "k"}
    first = await server.http.post("/v1/jobs", json=asked)
    same = await server.http.post("/v1/jobs", json={**asked, "args": [{"a": 2, "b": 1}]})
    by_header = await server.http.post(
        "/v1/jobs", json={"task": "echo", "args": [{"a": 2, "b": 1}]}, headers={"Idempotency-Key": "k"}
    )
    assert [first.status_code, same.status_code, by_header.status_code] == [201, 200, 200]
    assert first.json() == same.json() == by_header.json()
    refused(await server.http.post("/v1/jobs", json={**asked, "args": [1]}), 409, "idempotency_conflict")
    refused(await server.http.post("/v1/jobs", json={**asked, "key": "k" * 1024}), 422, "invalid_key")
    refused(await server.http.post("/v1/jobs", json=asked, headers={"Idempotency-Key": "j"}), 422, "invalid_key")
    assert len(await jobs(server)) == 1


async def test_s38_keys_of_foreign_tasks_too(server: Running) -> None:
    asked = {"task": "elsewhere", "queue": "foreign", "args": [{"b": 1, "a": 2}], "key": "k"}
    first = await server.http.post("/v1/jobs", json=asked)
    same = await server.http.post("/v1/jobs", json={**asked, "args": [{"a": 2, "b": 1}]})
    assert [first.status_code, same.status_code] == [201, 200]
    refused(await server.http.post("/v1/jobs", json={**asked, "args": [1]}), 409, "idempotency_conflict")
