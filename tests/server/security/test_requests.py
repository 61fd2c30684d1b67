"""Requests that can be read in two ways, and clients that leave; S5, S7, S47, S66, S68, S71."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from headrace import Headrace
from headrace.model.records import Filter, Page
from server.running import Running, make_app, running
from server.security.sent import jobs, post, raw, refused, status_of

pytestmark = pytest.mark.usefixtures("unharmed")

# ── JSON ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("digits", [4301, 5000, 100_000])
@pytest.mark.parametrize("form", ["%s", "-%s", "0.%s", "1e%s", "%s.5"])
async def test_s5_a_number_is_not_without_end(server: Running, digits: int, form: str) -> None:
    number = form % ("1" * digits)
    refused(await post(server, b'{"task":"echo","args":[%b]}' % number.encode()), 400, "number_too_long")
    assert await jobs(server) == []


async def test_s5_digits_in_a_text_are_a_text(server: Running) -> None:
    answer = await post(server, b'{"task":"echo","args":["%b"]}' % (b"1" * 5000))
    assert answer.status_code == 201


TWICE = [
    b'{"task":"echo","task":"add"}',
    b'{"task":"echo","args":[1],"args":[2]}',
    b'{"task" :"echo","task" :"echo"}',
    b'{"task"\n:"echo","task"\t:"echo"}',
    b'{"task":"echo","t\\u0061sk":"add"}',
    b'{"task":"echo","kwargs":{"a":1,"a":2}}',
    b'{"task":"echo","kwargs":{"a":1,"\\u0061":2}}',
    b'{"task":"echo","kwargs":{"a":{"b":[{"c":1,"c":1}]}}}',
    b'{"task":"echo","args":[{"":1,"":2}]}',
    b'{"task":"echo","args":[":",{"a":":","a":":"}]}',
    b'{"task":"echo","args":[123456789012345678901234567890,{"a":1,"a":1}]}',
    b'{"task":"echo","args":["\\":",{"a":1,"a":"\\u0022:"}]}',
]


@pytest.mark.parametrize("body", TWICE)
async def test_s7_a_name_stands_once_in_an_object(server: Running, body: bytes) -> None:
    refused(await post(server, body), 400, "duplicate_key")
    refused(await post(server, b'{"jobs":[%b]}' % body, "/v1/jobs/batch"), 400, "duplicate_key")
    assert await jobs(server) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"task":"echo","kwargs":{"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]}}',
        b'{"task":"echo","args":[["\\":\\":", ":", "\\\\"]], "kwargs" : {"a":"\\u0022:"}}',
        b'{"task":"echo","kwargs":{"a":1,"A":2}}',
    ],
)
async def test_s7_the_same_name_in_several_objects_is_good(server: Running, body: bytes) -> None:
    assert (await post(server, body)).status_code == 201


@pytest.mark.parametrize("tz", ["Mars/Olympus", "posixrules", "localtime", "../etc/passwd", "right/UTC", "x" * 300, ""])
async def test_s68_a_time_zone_has_a_place(server: Running, tz: str) -> None:
    asked = {"name": "s", "cron": "0 3 * * *", "tz": tz, "job": {"task": "echo"}}
    refused(await server.http.post("/v1/schedules", json=asked), 422, "invalid_timezone")


async def test_now_is_a_time(server: Running) -> None:
    for path, asked in (("/enqueue", {"type": "echo"}), ("/v1/jobs", {"task": "echo"})):
        answer = await server.http.post(path, json={**asked, "run_at": "now"})
        assert answer.status_code == 201, answer.text
        for bad in ("tomorrow", "NOW", "", "2030-01-01T00:00:00", 5):
            refused(await server.http.post(path, json={**asked, "run_at": bad}), 422, "invalid_run_at")
    assert [job["state"] for job in await jobs(server)] == ["ready", "ready"]
    excluded = {"task": "echo", "run_at": "now", "delay": "1s"}
    refused(await server.http.post("/v1/jobs", json=excluded), 422, "invalid_run_at")


# ── the head of a request ────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [b"/livez", b"/v1/jobs", b"/nothing", b"/v1/nothing"])
@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Host: localhost\r\nHost: localhost\r\n",
        b"Host: localhost\r\nHost: evil.example\r\n",
        b"Host: evil.example\r\nX: y\r\nhost: localhost\r\n",
    ],
)
async def test_s47_a_request_has_one_host(server: Running, path: bytes, head: bytes) -> None:
    answer = await raw(server, b"GET %b HTTP/1.1\r\n%b\r\n" % (path, head))
    assert status_of(answer) == 400
    assert b"malformed_request" in answer


@pytest.mark.parametrize("host", [b"intranet", b"evil.example", b"0.0.0.0", b"localhost.evil.example"])
async def test_s47_a_name_of_others_is_not_ours(server: Running, host: bytes) -> None:
    pause = b"POST /v1/queues/q/pause HTTP/1.1\r\nConnection: close\r\nHost: %b\r\nOrigin: http://%b\r\n%b\r\n"
    for more in (b"", b"Sec-Fetch-Site: same-origin\r\n"):
        answer = await raw(server, pause % (host, host, more + b"Content-Length: 0\r\n"))
        assert status_of(answer) == 421
        assert b"host_not_allowed" in answer
    assert await server.store.pauses() == []


BODY = b'{"task":"echo"}'
SHAPES = {
    "two lengths": b"Content-Length: 15\r\nContent-Length: 30\r\n\r\n" + BODY,
    "two equal lengths": b"Content-Length: 15\r\nContent-Length: 15\r\n\r\n" + BODY,
    "a list of lengths": b"Content-Length: 15, 15\r\n\r\n" + BODY,
    "a signed length": b"Content-Length: +15\r\n\r\n" + BODY,
    "length and chunks": b"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks twice": b"Transfer-Encoding: chunked, chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a bare newline": b"X: y\nTransfer-Encoding: chunked\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 15\r\n\r\n" + BODY,
    "a folded line": b"X: y\r\n Content-Length: 15\r\n\r\n" + BODY,
    "a bad chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_request_hides_in_another(server: Running, shape: str) -> None:
    """Whatever follows a request whose end can be read in two ways is not taken for a request of its own."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    hidden = b"POST /v1/queues/hidden/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    answer = await raw(server, head + SHAPES[shape] + hidden)
    assert status_of(answer) in {400, 411, 415}, answer
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert await server.store.pauses() == []
    assert await jobs(server) == []


async def test_other_forms_of_a_target(server: Running) -> None:
    head = b"Host: localhost\r\nConnection: close\r\n\r\n"
    assert status_of(await raw(server, b"GET http://localhost/livez HTTP/1.1\r\n" + head)) == 200
    assert status_of(await raw(server, b"GET //livez HTTP/1.1\r\n" + head)) == 404
    assert status_of(await raw(server, b"OPTIONS * HTTP/1.1\r\n" + head)) in {400, 404, 405}
    assert status_of(await raw(server, b"CONNECT localhost:80 HTTP/1.1\r\n" + head)) in {400, 404, 405}
    assert status_of(await raw(server, b"OPTIONS /v1/jobs HTTP/1.1\r\n" + head)) == 405
    seen = await raw(server, b"HEAD /livez HTTP/1.1\r\n" + head)
    assert status_of(seen) == 200
    assert seen.endswith(b"\r\n\r\n")


# ── the log, and clients that leave ──────────────────────────────────────────


async def test_every_request_is_in_the_access_log(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.access")
    paths = ["/livez", "/nothing", "/v1/nothing", "/v1/jobs/x/y/z", "/v1/jobs"]
    for path in paths:
        await server.http.get(path, headers={"X-Request-Id": "mine"})
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "headrace.access"]
    assert [line["path"] for line in lines] == paths
    assert [line["status"] for line in lines] == [200, 404, 404, 404, 200]
    assert {line["request_id"] for line in lines} == {"mine"}


@pytest.mark.parametrize("path", [b"/v1/jobs?text=nothing", b"/v1/dead"])
async def test_nobody_looks_for_a_client_that_has_hung_up(
    server: Running, path: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.access")
    begun, ended, noted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def note(record: logging.LogRecord) -> bool:
        if '"status": 499' in record.getMessage():
            noted.set()
        return True

    monkeypatch.setattr(logging.getLogger("headrace.access"), "filters", [note])

    async def find(where: Filter, **_: Any) -> Page:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError(where)

    with monkeypatch.context() as patch:
        patch.setattr(server.store, "find", find)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        async with asyncio.timeout(60):
            await begun.wait()
            writer.close()
            await ended.wait()
            await noted.wait()


# ── schedules of tenants ─────────────────────────────────────────────────────


async def test_a_tenants_schedules_are_its_own(store_url: str) -> None:
    app: Headrace = make_app(store_url)
    app.queue("unfair", fair="off")
    async with running(app) as server:
        asked = {"name": "nightly", "cron": "0 3 * * *", "job": {"task": "echo", "queue": "unfair"}}
        clients = [server.client(await server.token("operate", "read", tenant=name)) for name in ("t1", "t2", "t:1")]
        for client in clients:
            answer = await client.post("/v1/schedules", json=asked)
            assert answer.status_code == 201, answer.text
            refused(await client.post("/v1/schedules", json=asked), 409, "schedule_exists")
        for client, name in zip(clients, ("t1", "t2", "t:1"), strict=True):
            (seen,) = (await client.get("/v1/schedules")).json()["items"]
            assert (seen["name"], seen["tenant"]) == ("nightly", name)
            assert (await client.post("/v1/schedules/nightly/pause")).json()["paused"] is True
            refused(await client.post("/v1/schedules/t1:nightly/resume"), 422, "invalid_schedule_name")
        everything = {each["name"]: each["paused"] for each in (await _admin(server, "GET", "/v1/schedules"))["items"]}
        assert everything == {"t1:nightly": True, "t2:nightly": True, "t:1:nightly": True}
        assert (await _admin(server, "POST", "/v1/schedules/t2:nightly/resume"))["paused"] is False
        for client in clients:
            assert (await client.delete("/v1/schedules/nightly")).status_code == 204
            await client.aclose()
        assert await server.store.records("schedule") == {}


async def _admin(server: Running, method: str, path: str) -> Any:
    async with server.client(await server.token("admin")) as client:
        return (await client.request(method, path)).json()
