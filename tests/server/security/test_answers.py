"""What is answered, and what is never said: media types, policies, logs, secrets; S42 to S51, S70 to S73."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.server import ServerSettings
from headrace.server.api.resources import ENDPOINTS
from headrace.store.http import wire
from server.running import Running, running
from server.security.sent import quoted, raw, refused, status_of

pytestmark = pytest.mark.usefixtures("unharmed")


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
        f"/v1/jobs?text={MARKUP}",
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


@pytest.mark.parametrize(
    "path",
    [
        '/queues/"><svg onload=alert(1)>',
        '/v1/queues/"><svg onload=alert(1)>',
        "/jobs?text=</script><script>alert(1)</script>",
        "/v1/jobs?text=</script><script>alert(1)</script>",
        "/v1/jobs?</script><script>alert(1)</script>=1",
        "/overview/x'onmouseover='alert(1)",
        "/docs?</script><script>alert(1)</script>",
        "/docs/</script><script>alert(1)</script>",
    ],
)
async def test_s42_nothing_that_was_sent_comes_back_as_a_page(server: Running, path: str) -> None:
    answer = await server.http.get(path)
    assert answer.status_code in {200, 404, 422}
    assert answer.headers["content-type"] in {"application/json", "application/problem+json"}
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_s45_pages_of_others_change_nothing(server: Running) -> None:
    changing = [each for each in ENDPOINTS if each.method != "GET"]
    evil: list[dict[str, str]] = [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil"},
    ]
    for each in changing:
        path = re.sub(r"\{[^}]+\}", "something", each.path)
        for headers in evil:
            refused(await server.http.request(each.method, path, json={}, headers=headers), 403, "csrf")
    fair = {"Sec-Fetch-Site": "same-origin"}
    assert (await server.http.post("/v1/queues/mail/pause", headers=fair)).status_code == 200


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_s45_looking_changes_nothing(app: Headrace, store_url: str) -> None:
    def dump() -> list[str]:
        with sqlite3.connect(store_url.removeprefix("sqlite:///")) as eye:
            found = list(eye.iterdump())
        eye.close()
        return found

    # By itself it promotes, reaps and prunes.
    async with running(app, ServerSettings(port=0, tidy=False, max_polls=1000)) as server:
        http = server.http
        id = (await http.post("/v1/jobs", json={"task": "echo", "args": [1]})).json()["id"]
        await http.post("/v1/jobs", json={"task": "echo", "run_at": "1h"})
        await http.post("/v1/schedules", json={"name": "s", "cron": "* * * * *", "job": {"task": "echo"}})
        await http.post("/v1/queues/mail/pause")
        await http.put("/v1/limits/l", json={"concurrency": 1})
        await server.store.stats()  # moves single jobs out of the inbox, which the store would do soon by itself
        before = dump()
        looked = 0
        for each in ENDPOINTS:
            if each.method != "GET":
                continue
            path = each.path.replace("{id}", id).replace("{name}", "s")
            for method in ("GET", "HEAD"):
                async with http.stream(method, path) as answer:
                    assert answer.status_code in {200, 202, 204, 404}, (path, answer.status_code)
                looked += 1
        assert looked > 40
        # What only looks over the wire of stores goes by POST, for its body's sake.
        for verb in wire.VERBS.values():
            if verb.reads and verb.takes == tuple[()]:
                reply = await http.post(
                    f"/v1/store/{verb.name}", content=wire.encode(()), headers={"Content-Type": wire.MEDIA}
                )
                assert reply.status_code == 200, verb.name
        assert dump() == before


@pytest.mark.parametrize("headers", [b"Origin: https://evil", b"Sec-Fetch-Site: cross-site"])
async def test_s46_other_sites_hear_nothing(server: Running, headers: bytes) -> None:
    for more in (b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"):
        head = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n%b%b\r\nConnection: close\r\n\r\n" % (more, headers)
        answer = await raw(server, head)
        assert status_of(answer) == 403
        assert b"text/event-stream" not in answer


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


async def test_s51_by_itself_it_listens_here_only() -> None:
    assert ServerSettings().host == "127.0.0.1"


async def test_s70_one_line_of_the_log_per_request(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    evil = "x\n2026-01-01 INFO admin logged in\r\x85\u2028\x1b[2J"
    with caplog.at_level(logging.INFO, logger="headrace.access"):
        await server.http.get(f"/v1/jobs/{quoted(evil)}?text=hunter2", headers={"User-Agent": "x\t[2J"})
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


async def test_s72_arguments_that_a_task_hides_are_masked(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "login", "args": ["me", "hunter2"]})
    seen = await server.http.get(f"/v1/jobs/{made.json()['id']}")
    assert "hunter2" not in seen.text
    assert seen.json()["arguments"]["args"] == ["me", "•••"]
    complaint = await server.http.post("/v1/jobs", json={"task": "login", "kwargs": {"user": 1, "password": "hunter2"}})
    refused(complaint, 422, "bad_arguments")
    assert "hunter2" not in complaint.text
