"""Bad input over HTTP and the exact answer to it; after each the server is well, and nothing was logged as a fault."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from server.running import Running

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
async def unharmed(server: Running, caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Whatever was sent, the server is well and says nothing of a fault of its own."""
    yield
    assert (await server.http.get("/healthz")).status_code == 200
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def post(server: Running, content: bytes, path: str = "/v1/jobs") -> httpx.Response:
    return await server.http.post(path, content=content, headers=JSON)


def refused(response: httpx.Response, status: int, code: str) -> None:
    """A problem document of that code, and nothing in it that is nobody's business."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"urn:headrace:problem:{code}"
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text


async def jobs(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.http.get("/v1/jobs")).json()["jobs"]
    return found


# ── what is asked for ────────────────────────────────────────────────────────


async def test_s3_no_task_is_imported_by_its_name(server: Running) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": "os.system", "args": ["id"]}), 422, "unknown_task")
    assert await jobs(server) == []


async def test_s4_deep_json_is_refused_at_once(server: Running) -> None:
    await post(server, b"{}")
    cpu = time.process_time()
    refused(await post(server, b"[" * 100_000 + b"]" * 100_000), 400, "json_too_deep")
    assert time.process_time() - cpu < 0.5  # the client's share included
    refused(await post(server, b'{"task":"echo","args":' + b"[" * 400_000), 400, "json_too_deep")
    refused(await post(server, b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400, "json_too_deep")


async def test_s4_as_deep_as_allowed_is_taken(server: Running) -> None:
    body = b'{"task":"echo","args":' + b"[" * 63 + b"]" * 63 + b"}"
    assert (await post(server, body)).status_code == 201
    # Brackets inside a text are none.
    assert (await server.http.post("/v1/jobs", json={"task": "echo", "args": ["[" * 1000]})).status_code == 201


async def test_s5_an_object_has_at_most_a_thousand_names(server: Running) -> None:
    many = {f"k{n}": n for n in range(1001)}
    refused(await server.http.post("/v1/jobs", json={"task": "echo", "args": [many]}), 422, "too_many_keys")
    few = [{f"k{n}": n for n in range(600)}, {f"k{n}": n for n in range(600)}]
    assert (await server.http.post("/v1/jobs", json={"task": "echo", "args": [few]})).status_code == 201


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"-Infinity", b"Infinity", b"-1e999", b'{"x":[1e400]}'])
@pytest.mark.parametrize("queue", [b"", b',"queue":"foreign"'])
async def test_s6_numbers_are_finite(server: Running, number: bytes, queue: bytes) -> None:
    task = b"elsewhere" if queue else b"echo"
    body = b'{"task":"%b","args":[%b]%b}' % (task, number, queue)
    refused(await post(server, body), 400, "non_finite_number")
    assert await jobs(server) == []


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00", rb"x\ud800y", rb"\ud800\ud800"])
async def test_s8_half_a_surrogate_pair_is_no_text(server: Running, text: bytes) -> None:
    refused(await post(server, b'{"task":"echo","args":["%b"]}' % text), 422, "invalid_unicode")
    refused(await post(server, b'{"task":"%b"}' % text), 422, "invalid_unicode")


async def test_s9_nul_is_data_in_arguments_and_nothing_in_names(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["\0a\0"]})
    assert made.status_code == 201
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert seen.json()["arguments"] == {"args": ["\0a\0"], "kwargs": {}}
    for field in ({"queue": "a\0b"}, {"tenant": "a\0b"}, {"key": "a\0b"}, {"task": "a\0b"}):
        answer = await server.http.post("/v1/jobs", json={"task": "echo", **field})
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "body",
    [
        '{"task":"echo"}'.encode("utf-16"),
        '{"task":"echo"}'.encode("utf-16-le"),
        '{"task":"echo"}'.encode("utf-32"),
        b"\xff\xfe",
        b'{"task":"echo","args":["\xff"]}',
        b'{"task":"\xc3\x28"}',
    ],
)
async def test_s10_a_body_is_utf_8(server: Running, body: bytes) -> None:
    refused(await post(server, body), 400, "invalid_utf8")


@pytest.mark.parametrize(
    "media",
    [
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/json; charset=utf-16",
        "",
    ],
)
async def test_s11_only_json_is_read(server: Running, media: str) -> None:
    read = 0

    async def noise() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(2000):
            read += 1
            yield os.urandom(16 * 1024)

    before = psutil.Process().memory_info().rss
    try:
        answer = await server.http.post("/v1/jobs", content=noise(), headers={"Content-Type": media})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # it had closed the connection before all of it was sent
    else:
        refused(answer, 415, "content_type_not_allowed")
    assert read < 2000
    assert psutil.Process().memory_info().rss - before < 16 * 1024 * 1024  # the client's buffers are in it


async def test_s11_the_answer_comes_before_the_body(server: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
    assert (await raw(server, head)).startswith(b"HTTP/1.1 415 ")


# ── how much ─────────────────────────────────────────────────────────────────


async def raw(server: Running, data: bytes, *more: bytes) -> bytes:
    """What comes back on a bare connection, up to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        for each in more:
            await writer.drain()
            writer.write(each)
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


async def test_s13_a_payload_has_its_limit(server: Running) -> None:
    limit = 256 * 1024
    # [[text], {}] takes seven bytes more than the text.
    fits = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["x" * (limit - 8)]})
    assert fits.status_code == 201
    over = await server.http.post("/v1/jobs", json={"task": "echo", "args": ["x" * (limit + 1)]})
    refused(over, 422, "payload_too_large")
    far = {"task": "elsewhere", "queue": "foreign", "args": ["x" * (limit + 1)]}
    refused(await server.http.post("/v1/jobs", json=far), 422, "payload_too_large")
    assert len(await jobs(server)) == 1


async def test_s14_a_large_body_is_not_read(server: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = await raw(server, head + b"Content-Length: 10737418240\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer
    assert b"connection: close" in answer.lower()


async def test_s14_an_endless_body_is_not_read(server: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    sent = 0
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"

    async def send() -> None:
        nonlocal sent
        while True:
            writer.write(chunk)
            await writer.drain()
            sent += 0x10000

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(20):
            answer = await reader.read()
    except ConnectionError:
        answer = b"HTTP/1.1 413 "  # closed while we were still sending: the system drops what had come back
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert sent < 32 * 1024 * 1024  # what the sockets' buffers hold


async def test_s15_compressed_bodies_are_refused(server: Running) -> None:
    for encoding in ("gzip", "br", "deflate", "gzip, gzip"):
        answer = await server.http.post("/v1/jobs", content=b"\x1f\x8b", headers={**JSON, "Content-Encoding": encoding})
        refused(answer, 415, "content_encoding_not_allowed")


async def test_s16_prototype_keys_are_data(server: Running) -> None:
    arguments = {"__proto__": {"x": 1}, "constructor": 1}
    made = await server.http.post("/v1/jobs", json={"task": "echo", "args": [arguments]})
    assert made.status_code == 201
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert seen.json()["arguments"]["args"] == [arguments]


# ── names ────────────────────────────────────────────────────────────────────

BAD_NAMES = [
    'x"; DROP TABLE jobs;--',
    "*",
    ">",
    "$JS.API",
    "a b",
    "{x}",
    "a:b",
    "jobs\r\nDEL x",
    "Ünïcode",
    "",
    "']] .. redis.call('FLUSHALL') ..'",
    "x" * 64,
    "x\n2026-01-01 INFO admin logged in",
    "\x1b[2J",
    "\u2028",
    "\x85",
]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_s17_s19_s22_s70_queue_names_are_names(server: Running, name: str) -> None:
    await server.http.post("/v1/jobs", json={"task": "echo"})
    refused(await server.http.post("/v1/jobs", json={"task": "echo", "queue": name}), 422, "invalid_queue_name")
    refused(await server.http.get("/v1/jobs", params={"queue": name}), 422, "invalid_queue_name")
    path = f"/v1/queues/{quoted(name)}/pause"
    answer = await server.http.post(path)
    # An empty name, or one that is a path of its own, leads nowhere.
    assert answer.status_code == (404 if not name or "/" in name else 422), answer.text
    assert len(await jobs(server)) == 1


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


@pytest.mark.parametrize("name", ["x y", "x\ny", "\x1b[2J", "a\u2028b", "", "x" * 129, "-x"])
async def test_s70_task_names_are_names(server: Running, name: str) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": name}), 422, "invalid_task_name")


async def test_s20_a_search_is_literal(server: Running) -> None:
    await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})
    assert (await server.http.get("/v1/jobs", params={"q": "%_"})).json()["jobs"] == []
    assert (await server.http.get("/v1/jobs", params={"q": "_dd"})).json()["jobs"] == []
    assert len((await server.http.get("/v1/jobs", params={"q": "dd"})).json()["jobs"]) == 1


@pytest.mark.parametrize("query", ["sort=(select pg_sleep(5))", "order=1;--", "sort=id", "order_by=x"])
async def test_s21_the_order_is_fixed(server: Running, query: str) -> None:
    refused(await server.http.get(f"/v1/jobs?{query}"), 422, "invalid_sort")


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2f..%2fetc/passwd",
        "/docs/..%2f..%2f..%2fetc/passwd",
        "/docs/%5c..%5c..%5cetc/passwd",
        "/docs/../../etc/passwd",
        "/v1/jobs/../../etc",
        "/v1/jobs/..%2f..%2fetc",
        "//etc/passwd",
    ],
)
async def test_s23_no_path_leads_to_a_file(server: Running, path: str) -> None:
    answer = await raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 422 ")), answer
    assert b"root:" not in answer


@pytest.mark.parametrize("id", ["1 OR 1=1", "x" * 10_000, "%00", "1", "{01890a5d-ac96-774b-bcce-b302099a0001}"])
async def test_s24_an_id_is_an_id(server: Running, id: str) -> None:
    path = f"/v1/jobs/{id.replace(' ', '%20')}"
    for answer in (
        await server.http.get(path),
        await server.http.get(f"{path}/explain"),
        await server.http.post(f"{path}/cancel"),
        await server.http.post(f"{path}/retry"),
        await server.http.delete(path),
    ):
        refused(answer, 422, "invalid_job_id")


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
        assert (await two.get("/v1/jobs")).json()["jobs"] == []
        assert (await two.get("/v1/jobs", params={"tenant": "t1"})).json()["jobs"] == []
        assert len((await one.get("/v1/jobs")).json()["jobs"]) == 2
        assert (await two.get("/v1/queues")).json() == {"queues": []}
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


async def test_s34_a_token_of_one_queue_sees_that_queue(server: Running) -> None:
    token = await server.token("enqueue", "read", "operate", queues=["billing"])
    default = await server.service.client.put(server.app.tasks["echo"].job(1).job)
    async with server.client(token) as client:
        assert (await client.post("/v1/jobs", json={"task": "charge", "args": [1, "a"]})).status_code == 201
        refused(await client.post("/v1/jobs", json={"task": "echo"}), 422, "unknown_task")
        refused(await client.post("/v1/jobs", json={"task": "echo", "queue": "default"}), 404, "not_found")
        assert (await client.post("/v1/jobs", json={"task": "echo", "queue": "billing"})).status_code == 201
        refused(await client.get(f"/v1/jobs/{default}"), 404, "job_not_found")
        assert len((await client.get("/v1/jobs")).json()["jobs"]) == 2
        assert [each["name"] for each in (await client.get("/v1/queues")).json()["queues"]] == ["billing"]
        assert [each["name"] for each in (await client.get("/v1/tasks")).json()["tasks"]] == ["charge"]
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


# ── what is answered ─────────────────────────────────────────────────────────

MARKUP = "<img src=x onerror=alert(1)>"


async def test_s43_data_is_never_a_page(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "echo", "args": [MARKUP], "kwargs": {MARKUP: MARKUP}})
    id = made.json()["id"]
    paths = [
        "/v1/jobs",
        f"/v1/jobs/{id}",
        f"/v1/jobs/{id}/explain",
        "/v1/queues",
        "/v1/stats",
        "/metrics",
        "/v1/tasks",
        "/v1/workers",
        "/v1/schedules",
        "/v1/dead",
        "/v1/limits",
        f"/v1/jobs?q={MARKUP}",
        f"/v1/queues/{MARKUP}/nothing",
        "/openapi.json",
        "/livez",
    ]
    for path in paths:
        answer = await server.http.get(path)
        media = answer.headers["content-type"].partition(";")[0]
        assert media in {"application/json", "application/problem+json", "text/plain"}, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


async def test_s44_a_page_may_do_little(server: Running) -> None:
    for path in ("/docs", "/docs/docs.js", "/docs/docs.css"):
        answer = await server.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    page = (await server.http.get("/docs")).text
    assert "onclick" not in page
    assert "style=" not in page
    assert page.count("<script") == page.count('<script src="docs/docs.js"') == 1
    assert "//" not in page.replace("<!doctype", "")  # nothing from anywhere else
    script = (await server.http.get("/docs/docs.js")).text
    assert "innerHTML" not in script
    assert "eval(" not in script


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
async def test_s51_nobody_opens_a_queue_by_accident(server: Running, store_url: str, host: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from headrace import Headrace\napp = Headrace()\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", "serve", "shop:app", "--host", host,
        cwd=tmp_path, env={**os.environ, "HEADRACE_URL": store_url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, complaint = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 78
    assert b"headrace tokens create" in complaint
    assert complaint.count(b"\n") == 1


@pytest.mark.parametrize(
    "query",
    ["limit=10000000", "limit=1e9", "limit=0", "limit=-1", "page=-1", "days=1000000", "limit=1&limit=2", "before=x"],
)
async def test_s52_pages_have_their_limit(server: Running, query: str) -> None:
    answer = await server.http.get(f"/v1/jobs?{query}")
    assert answer.status_code == 422, answer.text


async def test_s63_ranges_are_ignored(server: Running) -> None:
    ranges = "bytes=" + ",".join(f"{n}-{n}" for n in range(2000))
    answer = await server.http.get("/docs/docs.js", headers={"Range": ranges})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Large", "x" * 100_000)],
        [("X-Large", "x" * 1_000_000)],
        [(f"X-{n}", "x") for n in range(1000)],
    ],
)
async def test_s64_a_head_has_its_limit(server: Running, headers: list[tuple[str, str]]) -> None:
    head = "GET /livez HTTP/1.1\r\nHost: localhost\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    try:
        answer = await raw(server, head.encode() + b"\r\n")
    except ConnectionError:
        answer = b"HTTP/1.1 431 "  # closed while we were still sending: the system drops what had come back
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:200]


async def test_s64_a_path_has_its_limit(server: Running) -> None:
    answer = await raw(server, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 414 "), answer[:200]


async def test_s65_a_batch_has_its_limit_and_no_parts(server: Running) -> None:
    many = {"jobs": [{"task": "add", "args": [n]} for n in range(1001)]}
    refused(await server.http.post("/v1/jobs/batch", json=many), 422, "batch_too_large")
    refused(await server.http.post("/v1/jobs/batch", json={"jobs": []}), 422, "batch_empty")
    nested = {"jobs": [{"task": "add", "args": [1]}, {"jobs": [{"task": "add", "args": [1]}]}]}
    refused(await server.http.post("/v1/jobs/batch", json=nested), 422, "unknown_field")
    one_bad = {"jobs": [{"task": "add", "args": [1]}, {"task": "add", "args": ["x"]}]}
    answer = await server.http.post("/v1/jobs/batch", json=one_bad)
    refused(answer, 422, "bad_arguments")
    assert answer.json()["path"].startswith("jobs[1].")
    huge = b'{"jobs":[' + b",".join([b"1"] * 500_001) + b"]}"
    refused(await post(server, huge, "/v1/jobs/batch"), 422, "invalid_field")
    assert await jobs(server) == []


@pytest.mark.parametrize(
    "cron",
    [
        "* * * * *\n* * * * * root id",
        "@reboot",
        "0 0 31 2 *",
        "0 0 30 2 *",
        "*/0 * * * *",
        "60 * * * *",
        "5-1 * * * *",
        "* " * 5000,
        "",
    ],
)
async def test_s67_cron_nonsense(server: Running, cron: str) -> None:
    asked = {"name": "s", "cron": cron, "job": {"task": "echo"}}
    answer = await server.http.post("/v1/schedules", json=asked)
    refused(answer, 422, "never_fires" if cron in {"0 0 31 2 *", "0 0 30 2 *"} else "invalid_cron")
    assert (await server.http.get("/v1/schedules")).json() == {"schedules": []}


@pytest.mark.parametrize(
    "run_at",
    [
        "9999999-01-01T00:00:00Z",
        -1,
        "Infinity",
        "-Infinity",
        "NaN",
        1e300,
        f"{datetime.now(UTC).year + 100}-01-01T00:00:00Z",
        "2030-01-01T00:00:00",
        "0001-01-01T00:00:00Z",
        "tomorrow",
        "",
        [],
    ],
)
async def test_s69_times_nobody_means(server: Running, run_at: Any) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": "echo", "run_at": run_at}), 422, "invalid_run_at")
    short = {"type": "echo", "payload": {}, "run_at": run_at}
    refused(await server.http.post("/enqueue", json=short), 422, "invalid_run_at")
    assert await jobs(server) == []


async def test_s70_one_line_of_the_log_per_request(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    evil = "x\n2026-01-01 INFO admin logged in\r\x85\u2028\x1b[2J"
    with caplog.at_level(logging.INFO, logger="headrace.access"):
        await server.http.get(f"/v1/jobs/{quoted(evil)}?q=hunter2", headers={"User-Agent": "x\t[2J"})
        await server.http.post("/v1/jobs", json={"task": "login", "args": ["me", "hunter2"]})
    lines = [each.getMessage() for each in caplog.records if each.name == "headrace.access"]
    assert len(lines) == 2
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
        assert "hunter2" not in line
        assert json.loads(line)["event"] == "request"
    assert json.loads(lines[0])["path"] == f"/v1/jobs/{evil}"


async def test_s70_a_request_id_is_taken_over_if_it_is_sane(server: Running) -> None:
    given = await server.http.get("/livez", headers={"X-Request-Id": "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    for evil in ("x y", "é", "x" * 65, "<b>", ""):
        answer = await server.http.get("/livez", headers={b"X-Request-Id": evil.encode()})
        assert answer.headers["x-request-id"] != evil
        assert len(answer.headers["x-request-id"]) == 16


async def test_arguments_that_a_task_hides_are_masked(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "login", "args": ["me", "hunter2"]})
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert "hunter2" not in seen.text
    assert seen.json()["arguments"]["args"] == ["me", "•••"]
    complaint = await server.http.post("/v1/jobs", json={"task": "login", "kwargs": {"user": 1, "password": "hunter2"}})
    refused(complaint, 422, "bad_arguments")
    assert "hunter2" not in complaint.text
