"""`/v1/events/{name}/{key}`: a person, or another program, answers a task that waits."""

from __future__ import annotations

from datetime import datetime

import pytest

from server.running import Running


async def test_a_signal_is_taken_once_and_shown(server: Running):
    url = "/v1/events/payout.approved/42"
    assert (await server.http.get(url)).status_code == 404
    first = await server.http.post(url, json={"value": {"by": "ann", "ok": True}})
    assert (first.status_code, first.json()) == (201, {"signalled": True})
    second = await server.http.post(url, json={"value": None})
    assert (second.status_code, second.json()) == (200, {"signalled": False})
    shown = (await server.http.get(url)).json()
    assert (shown["signalled"], shown["value"]) == (True, {"by": "ann", "ok": True})
    assert (await server.http.get(f"{url}?tenant=acme")).status_code == 404
    entries = (await server.http.get("/v1/audit")).json()["items"]
    assert [(each["action"], each["what"]) for each in entries] == [("events.signal", "payout.approved of 42")]


async def test_a_key_may_have_a_slash(server: Running):
    for url in ("/v1/events/paid/shop%2F42", "/v1/events/paid/%5B%22chat%22%2C42%5D"):
        assert (await server.http.post(url, json={"value": 1})).status_code == 201
    assert (await server.http.get("/v1/events/paid/shop%2F42")).json()["key"] == "shop/42"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/events/no%20spaces/42", {}, "invalid_event_name"),
        (f"/v1/events/paid/{'k' * 300}", {}, "invalid_key"),
        ("/v1/events/paid/42", {"tenant": "a b"}, "invalid_tenant"),
        ("/v1/events/paid/42", {"queue": "No"}, "invalid_queue_name"),
        ("/v1/events/paid/42", {"value": "x" * 300_000}, "value_too_large"),
        ("/v1/events/paid/42", {"value": [1 << 70]}, "invalid_value"),
    ],
)
async def test_a_bad_signal_is_one_problem_and_stores_nothing(server: Running, path: str, body: object, code: str):
    answer = await server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert (await server.http.get("/v1/events/paid/42")).status_code == 404


async def test_the_value_of_a_declared_event_is_checked(server: Running):
    server.app.event("paid", datetime, keep="90d")
    url = "/v1/events/paid/8"
    for value in (None, "yes", 7):
        answer = await server.http.post(url, json={"value": value})
        assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, "invalid_value", "value")
        assert "does not fit the type of event paid" in answer.json()["detail"]
    assert (await server.http.get(url)).status_code == 404
    assert (await server.http.post(url, json={"value": "2026-11-18T09:00:00Z"})).status_code == 201


async def test_a_bad_signal_says_what_is_wrong(server: Running):
    answer = await server.http.post("/v1/events/no%20spaces/42", json={})
    assert "is not a valid event name" in answer.json()["detail"]
    answer = await server.http.post("/v1/events/paid/42", json={"value": "x" * 300_000})
    assert answer.json()["detail"] == (
        "the value of the event takes 300,005 bytes, the limit is 262,144: store the data elsewhere and pass a reference"
    )


async def test_a_token_of_a_tenant_signals_events_of_that_tenant_only(server: Running):
    url = "/v1/events/paid/7"
    async with server.client(await server.token("enqueue", tenant="acme")) as bound:
        answer = await bound.post(url, json={"value": 1, "tenant": "globex"})
        assert (answer.status_code, answer.json()["code"]) == (422, "tenant_not_allowed")
        assert (await bound.post(url, json={"value": 1})).status_code == 201
    async with server.client(await server.token("read")) as reader:
        assert (await reader.get(url)).status_code == 404
        assert (await reader.get(f"{url}?tenant=acme")).json()["value"] == 1
