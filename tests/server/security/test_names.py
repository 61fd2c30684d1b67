"""What names, ids, paths, searches and times may be; S17 to S24, S67 to S70."""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.errors import InvalidCron
from headrace.model.cron import check_cron
from server.running import Running
from server.security.sent import jobs, quoted, raw, refused

pytestmark = pytest.mark.usefixtures("unharmed")
EVERY_STORE = pytest.mark.parametrize("store_name", ["memory", "sqlite", "postgres", "redis", "valkey"], indirect=True)


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


@EVERY_STORE
async def test_s20_a_search_is_literal(server: Running) -> None:
    await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})
    assert (await server.http.get("/v1/jobs", params={"text": "%_"})).json()["items"] == []
    assert (await server.http.get("/v1/jobs", params={"text": "_dd"})).json()["items"] == []
    assert len((await server.http.get("/v1/jobs", params={"text": "dd"})).json()["items"]) == 1


def unasked(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the store must not be asked for jobs: what is refused is refused before, so it takes no time."""

    async def asked(*_: object, **__: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(server.store, "find", asked)


@pytest.mark.parametrize("query", ["sort=(select pg_sleep(5))", "order=1;--", "sort=id", "order_by=x"])
async def test_s21_the_order_is_fixed(server: Running, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        unasked(server, patch)
        refused(await server.http.get(f"/v1/jobs?{query}"), 422, "invalid_sort")


@pytest.mark.parametrize(
    "query",
    ["limit=10000000", "limit=1e9", "limit=0", "limit=-1", "page=-1", "days=1000000", "limit=1&limit=2", "before=x"],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/dead", "/v1/audit"])
async def test_s52_pages_have_their_limit(
    server: Running, path: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        unasked(server, patch)
        answer = await server.http.get(f"{path}?{query}")
    assert answer.status_code == 422, answer.text
    assert (await server.http.get("/v1/jobs?limit=1000")).status_code == 200
    assert (await server.http.get("/v1/jobs?limit=1001")).status_code == 422


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


NO_CRON = [
    "* * * * *\n* * * * * root id",
    "@reboot",
    "0 0 31 2 *",
    "0 0 30 2 *",
    "*/0 * * * *",
    "60 * * * *",
    "5-1 * * * *",
    "* " * 5000,
    "",
]


@pytest.mark.parametrize("cron", NO_CRON)
async def test_s67_cron_nonsense(server: Running, cron: str) -> None:
    asked = {"name": "s", "cron": cron, "job": {"task": "echo"}}
    answer = await server.http.post("/v1/schedules", json=asked)
    refused(answer, 422, "never_fires" if cron in {"0 0 31 2 *", "0 0 30 2 *"} else "invalid_cron")
    assert (await server.http.get("/v1/schedules")).json() == {"items": [], "next": None}


async def test_s67_it_takes_no_time() -> None:
    for cron in NO_CRON:
        spent: list[float] = []
        for _ in range(5):
            began = time.thread_time()
            with pytest.raises(InvalidCron):
                check_cron(cron)
            spent.append(time.thread_time() - began)
        assert min(spent) < 1, cron[:40]  # of the processor, on any machine; some milliseconds are usual


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


@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_s17_the_tables_are_still_there(server: Running, store_url: str) -> None:
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as eye:
        before = eye.execute("select type, name, sql from sqlite_master order by name").fetchall()
        for field in ("queue", "task", "tenant", "key"):
            for evil in ('x"; DROP TABLE jobs;--', "x'; DROP TABLE jobs;--", "x`; DROP TABLE jobs;--"):
                await server.http.post("/v1/jobs", json={"task": "echo", field: evil})
                await server.http.get("/v1/jobs", params={field: evil, "q": evil})
                await server.http.get("/v1/jobs", params={"text": evil})
                await server.http.post("/v1/pauses", json={"task": evil})
        assert before
        assert eye.execute("select type, name, sql from sqlite_master order by name").fetchall() == before
    eye.close()


@pytest.mark.parametrize("name", ["x y", "x\ny", "\x1b[2J", "a\u2028b", "", "x" * 129, "-x"])
async def test_s70_task_names_are_names(server: Running, name: str) -> None:
    refused(await server.http.post("/v1/jobs", json={"task": name}), 422, "invalid_task_name")
