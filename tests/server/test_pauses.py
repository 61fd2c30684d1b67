"""`/v1/pauses`: pausing queues, tasks and tenants over HTTP: author, end, and permissions."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from headrace import Headrace
from server.running import Running, running

WHAT = [("queue", "mail"), ("task", "echo"), ("tenant", "acme/eu")]


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def pauses(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.get("/v1/pauses")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


@pytest.mark.parametrize(("kind", "name"), WHAT)
async def test_paused_and_resumed(server: Running, kind: str, name: str) -> None:
    answer = await server.http.post("/v1/pauses", json={kind: name})
    assert answer.json() == {"kind": kind, "name": name, "paused": True, "until": None}
    (pause,) = await pauses(server.http)
    assert (pause["kind"], pause["name"], pause["by"], pause["until"]) == (kind, name, "local", None)
    (stored,) = await server.store.pauses()
    assert (stored.kind, stored.name, stored.by) == (kind, name, "local")
    answer = await server.http.post("/v1/pauses/resume", json={kind: name})
    assert answer.json() == {"kind": kind, "name": name, "paused": False, "until": None}
    assert await pauses(server.http) == []
    assert await server.store.pauses() == []
    entries = (await server.http.get("/v1/audit")).json()["items"]
    assert [(each["action"], each["what"], each["who"]) for each in entries] == [
        (f"{kind}s.resume", name, "local"),
        (f"{kind}s.pause", name, "local"),
    ]


@pytest.mark.parametrize(("kind", "name"), WHAT)
async def test_a_pause_ends_by_itself(server: Running, kind: str, name: str) -> None:
    now = await server.store.now()
    lasting = await server.http.post("/v1/pauses", json={kind: name, "until": "2h"})
    until = datetime.fromisoformat(lasting.json()["until"])
    assert timedelta(hours=2) <= until - now < timedelta(hours=2, minutes=5)
    (pause,) = await pauses(server.http)
    assert datetime.fromisoformat(pause["until"]) == until
    moment = f"{now.year + 1}-01-31T08:00:00Z"
    given = await server.http.post("/v1/pauses", json={kind: name, "until": moment})
    assert given.json()["until"] == moment
    (stored,) = await server.store.pauses()
    assert stored.until == datetime.fromisoformat(moment)


async def test_a_paused_tenant_is_not_claimed(server: Running) -> None:
    for shop in ("acme", "other"):
        made = await server.http.post("/v1/jobs", json={"task": "charge", "args": [1, shop]})
        assert made.status_code == 201
    await server.http.post("/v1/pauses", json={"tenant": "acme"})
    asked = {"queues": ["billing"], "limit": 10}
    claimed = (await server.http.post("/v1/claim", json=asked)).json()
    assert [job["tenant"] for job in claimed["jobs"]] == ["other"]
    assert (await server.http.post("/v1/claim", json=asked)).status_code == 204
    await server.http.post("/v1/pauses/resume", json={"tenant": "acme"})
    claimed = (await server.http.post("/v1/claim", json=asked)).json()
    assert [job["tenant"] for job in claimed["jobs"]] == ["acme"]


@pytest.mark.parametrize("path", ["/v1/pauses", "/v1/pauses/resume"])
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, "invalid_choice"),
        ({"queue": "a", "task": "b"}, "invalid_choice"),
        ({"queue": "A queue"}, "invalid_choice"),
        ({"task": "no task"}, "invalid_choice"),
        ({"tenant": ""}, "invalid_choice"),
        ({"tenant": "a b"}, "invalid_choice"),
        ({"queues": "a"}, "unknown_field"),
        ({"queue": 1}, "invalid_field"),
    ],
    ids=str,
)
async def test_what_cannot_be_paused(server: Running, path: str, body: dict[str, Any], wanted: str) -> None:
    assert code(await server.http.post(path, json=body)) == (422, wanted)
    assert await server.store.pauses() == []


@pytest.mark.parametrize("until", ["0s", "yesterday", "-1h", "2030-13-01T00:00:00Z", "2030-01-01T00:00:00"])
async def test_an_end_that_is_none(server: Running, until: str) -> None:
    answer = await server.http.post("/v1/pauses", json={"queue": "mail", "until": until})
    assert answer.status_code == 422
    assert answer.json()["path"] == "until"
    assert await server.store.pauses() == []


async def test_another_servers_pause_is_seen_within_a_second(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app) as server:
        assert await pauses(server.http) == []
        await server.store.pause("mail", by="elsewhere")
        kept = server.service.figures._pauses
        assert kept._reading is not None
        kept._reading = (kept._reading[0] - 1, kept._reading[1])
        assert [each["by"] for each in await pauses(server.http)] == ["elsewhere"]


# ── whose ────────────────────────────────────────────────────────────────────

MAY: dict[tuple[str, ...], set[tuple[str, str]]] = {
    (): {("queue", "mail"), ("queue", "hidden"), ("tenant", "own"), ("tenant", "covert"), ("task", "add")},
    ("tenant",): {("tenant", "own")},
    ("queues",): {("queue", "mail")},
    ("queues", "tenant"): set(),
}
BINDINGS: dict[str, Any] = {"queues": ("mail",), "tenant": "own"}


@pytest.mark.parametrize("bound", MAY, ids=str)
async def test_whoever_is_bound_pauses_what_is_theirs_alone(server: Running, bound: tuple[str, ...]) -> None:
    token = await server.token("read", "operate", **{name: BINDINGS[name] for name in bound})
    async with server.client(token) as client:
        for kind, name in MAY[()]:
            expected = 200 if (kind, name) in MAY[bound] else 404
            answers = [await client.post(path, json={kind: name}) for path in ("/v1/pauses", "/v1/pauses/resume")]
            assert [each.status_code for each in answers] == [expected, expected], (kind, name)
            if expected == 404:
                unknown = await client.post("/v1/pauses", json={kind: "never-heard-of"})
                assert {**answers[0].json(), "request_id": ""} == {**unknown.json(), "request_id": ""}
    assert await server.store.pauses() == []


async def test_whoever_is_bound_hears_of_what_holds_their_jobs(server: Running) -> None:
    for kind, name in MAY[()]:
        await server.http.post("/v1/pauses", json={kind: name})
    await server.http.post("/v1/pauses", json={"task": "charge"})
    seen = {
        "tenant": {("tenant", "own"), ("task", "add"), ("task", "charge")},
        "queues": {("queue", "mail")},
    }
    for name, expected in seen.items():
        async with server.client(await server.token("read", **{name: BINDINGS[name]})) as client:
            found = await pauses(client)
            assert {(each["kind"], each["name"]) for each in found} == expected
            # The author is shown only if the pause belongs to the caller alone.
            assert {(each["kind"], each["by"]) for each in found} == {
                (kind, "" if kind == "task" else "local") for kind, _ in expected
            }
