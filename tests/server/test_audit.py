"""The audit log: what is written, read and forgotten; its endpoint; and the commands that leave entries."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conftest import opened
from headrace import Headrace, Limit
from headrace.cli.root import root
from headrace.errors import Unavailable
from headrace.model.records import LimitRule
from headrace.operate import tokens
from headrace.store import connect
from headrace.store.audit import KEPT, LONGEST, Audit, whoami
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock
from server.running import Running

LONG_AGO = timedelta(days=365)


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_the_newest_comes_first(store: Store, clock: FakeClock) -> None:
    audit = Audit(store)
    began = await store.now()
    for number in range(5):
        await audit.note("ana", "jobs.cancel", f"job {number}", number)
        clock.advance(timedelta(hours=10))  # over two midnights
    entries = await audit.read(began)
    assert [(entry.who, entry.action, entry.what, entry.jobs) for entry in entries] == [
        ("ana", "jobs.cancel", f"job {number}", number) for number in (4, 3, 2, 1, 0)
    ]
    assert [entry.at for entry in entries] == [began + timedelta(hours=10 * number) for number in (4, 3, 2, 1, 0)]
    assert [entry.jobs for entry in await audit.read(began + timedelta(hours=20))] == [4, 3, 2]
    assert [entry.jobs for entry in await audit.read(began, limit=2)] == [4, 3]
    assert set(await store.records("audit")) == {f"{entry.at:%Y-%m-%d}" for entry in entries}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_have_every_entry_once(store: Store, clock: FakeClock, limit: int) -> None:
    audit, began = Audit(store), await store.now()
    for number in range(7):
        await audit.note("ana", "jobs.cancel", str(number))
        if number % 3 == 2:
            clock.advance(timedelta(hours=10))  # Some entries have the same time, and some are of other days.
    entries = await audit.read(began)
    pages = [await audit.page(began, limit=limit)]
    while (place := pages[-1].next) is not None:
        pages.append(await audit.page(began, limit=limit, before=place))
    assert [entry for page in pages for entry in page.entries] == entries
    assert [len(page.entries) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert pages[-1].entries


async def test_a_page_over_http_is_narrowed_by_a_text(server: Running) -> None:
    for name in ("mail", "billing", "mailing"):
        await server.http.post(f"/v1/queues/{name}/pause")
    first = (await server.http.get("/v1/audit", params={"limit": 2})).json()
    second = (await server.http.get("/v1/audit", params={"limit": 2, "before": first["next"]})).json()
    assert [entry["what"] for entry in first["items"] + second["items"]] == ["mailing", "billing", "mail"]
    assert second["next"] is None
    narrowed = (await server.http.get("/v1/audit", params={"text": "MAIL"})).json()["items"]
    assert [entry["what"] for entry in narrowed] == ["mailing", "mail"]
    for wrong in ("x", "_", "2026-11-16_x", "2026-11-16T00:00:00+00:00_"):
        answer = await server.http.get("/v1/audit", params={"before": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_value"), wrong


async def test_several_writers_lose_nothing(store: Store) -> None:
    one, other = Audit(store), Audit(store)
    for number in range(20):
        await (one if number % 2 else other).note("ana", "queues.pause", str(number))
    entries = await Audit(store).read(await store.now() - LONG_AGO)
    assert sorted(int(entry.what) for entry in entries) == list(range(20))


async def test_entries_are_forgotten_after_90_days(store: Store, clock: FakeClock) -> None:
    audit = Audit(store)
    first = f"{await store.now():%Y-%m-%d}"
    await audit.note("ana", "jobs.retry", "old")
    clock.advance(KEPT - timedelta(days=1))
    await audit.note("ana", "jobs.retry", "young")
    assert len(await audit.read(await store.now() - LONG_AGO)) == 2
    clock.advance(timedelta(days=2))
    await audit.note("ana", "jobs.retry", "new")
    assert [entry.what for entry in await audit.read(await store.now() - LONG_AGO)] == ["new", "young"]
    assert await store.records(f"audit.{first}") == {}
    assert first not in await store.records("audit")


async def test_a_long_past_is_forgotten_bit_by_bit(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.audit._FORGOTTEN_AT_ONCE", 3)
    first = f"audit.{await store.now():%Y-%m-%d}"
    audit = Audit(store)
    for _ in range(8):
        await audit.note("ana", "jobs.delete", "old")
    clock.advance(LONG_AGO)
    for left in (5, 2, 0, 0):
        await Audit(store).note("ana", "jobs.delete", "new")
        assert len(await store.records(first)) == left
    assert len(await store.records("audit")) == 1


async def test_more_entries_a_day_than_are_dropped_at_once_do_not_pile_up(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.audit._FORGOTTEN_AT_ONCE", 3)
    audit = Audit(store)
    for _ in range(5):
        for _ in range(10):
            await audit.note("ana", "jobs.delete", "old")
        clock.advance(timedelta(days=1))
    clock.advance(LONG_AGO)
    for _ in range(30):  # one server, one day
        await audit.note("ana", "jobs.delete", "new")
    (today,) = await store.records("audit")
    assert len(await store.records(f"audit.{today}")) == 30


async def test_any_text_is_kept(store: Store) -> None:
    await Audit(store).note("a\ud800\0\n\x1b[2J", "jobs.cancel", "x" * 10_000)
    (entry,) = await Audit(store).read(await store.now() - LONG_AGO)
    assert entry.who == "a?\0\n\x1b[2J"
    assert len(entry.what) == LONGEST


async def test_one_line_of_json_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.audit")
    await Audit(store).note("ana\n2026-01-01 INFO admin", "jobs.cancel", "\u2028\x85", 3)
    (line,) = [record.getMessage() for record in caplog.records]
    assert len(line.splitlines()) == 1
    said = json.loads(line)
    assert (said["who"], said["jobs"]) == ("ana\n2026-01-01 INFO admin", 3)


async def test_when_the_store_is_away_the_log_has_it(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any) -> None:
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store, "record", away)
        await Audit(store).note("ana", "jobs.delete", "everything", 7)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert '"jobs": 7' in record.getMessage()
    assert await Audit(store).read(await store.now() - LONG_AGO) == []


# ── over HTTP ────────────────────────────────────────────────────────────────


async def test_what_a_token_did(server: Running) -> None:
    text, _ = await tokens.create(server.store, "ana", scopes=["admin"])
    async with server.client(text) as client:
        assert (await client.post("/v1/queues/mail/pause")).status_code == 200
        assert (await client.post("/v1/queues/mail/resume")).status_code == 200
        assert (await client.get("/v1/queues")).status_code == 200
        entries = (await client.get("/v1/audit")).json()["items"]
        assert [entry["who"] for entry in entries] == ["ana", "ana"]
        assert ["resume" in entries[0]["action"], "pause" in entries[1]["action"]] == [True, True]
        assert all("mail" in entry["what"] for entry in entries)
        assert (await client.get("/v1/audit?since=1h&limit=1")).json()["items"] == entries[:1]
        assert (await client.get("/v1/audit?since=0s")).json()["items"] == []


@pytest.mark.parametrize(
    "query", ["since=yesterday", "since=-1d", "limit=0", "limit=1001", "limit=1e9", "days=1000000", "sort=who"]
)
async def test_what_cannot_be_asked(server: Running, query: str) -> None:
    assert (await server.http.get(f"/v1/audit?{query}")).status_code == 422


# ── the commands ─────────────────────────────────────────────────────────────


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_APP", raising=False)
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:///{tmp_path}/jobs.db")
    call("migrate")
    return f"sqlite:///{tmp_path}/jobs.db"


def call(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(args))
    assert result.exit_code == code, result.output
    return result


def test_commands_leave_entries(url: str) -> None:
    ids = [json.loads(call("enqueue", "t", "--raw", "--json").stdout)["id"] for _ in range(3)]
    call("jobs", "cancel", ids[0])
    call("jobs", "cancel", "--task", "t", "--queue", "default", "--state", "ready", "--json")
    call("jobs", "retry", *ids)
    call("jobs", "delete", "--everything", "--yes")
    call("queues", "pause", "mail", "billing")
    call("queues", "resume", "mail")
    call("dead", "replay", "--everything", "--yes")
    call("dead", "discard", "--task", "t", "--reason", "all wrong")
    entries = json.loads(call("audit", "--json").stdout)["items"]
    assert [(entry["action"], entry["what"], entry["jobs"]) for entry in reversed(entries)] == [
        ("jobs.cancel", ids[0], 1),
        ("jobs.cancel", "state=ready queue=default task=t", 2),
        ("jobs.retry", ", ".join(ids), 3),
        ("jobs.delete", "everything", 3),
        ("queues.pause", "mail", 0),
        ("queues.pause", "billing", 0),
        ("queues.resume", "mail", 0),
        ("dead.replay", "everything", 0),
        ("dead.discard", "task=t: all wrong", 0),
    ]
    assert {entry["who"] for entry in entries} == {whoami()}
    header, *lines = call("audit", "--since", "1h", "--limit", "4").stdout.splitlines()
    assert header.split() == ["when", "(UTC)", "who", "action", "what", "jobs"]
    assert len(lines) == 4
    assert "dead.discard" in lines[0]


def test_commands_on_what_is_paused_limited_and_scheduled_leave_entries(url: str) -> None:
    call("pause", "--task", "t", "--for", "1h")
    call("pause", "--tenant", "acme")
    call("resume", "--tenant", "acme")
    call("pause", "--queue", "mail")
    call("schedules", "add", "nightly", "t", "--raw", "--cron", "0 3 * * *")
    call("schedules", "add", "hourly", "t", "--raw", "--every", "1h")
    call("schedules", "pause", "nightly", "hourly")
    call("schedules", "resume", "nightly", "missing", "hourly", code=1)
    call("schedules", "run-now", "nightly")
    call("schedules", "remove", "nightly")
    asyncio.run(declare(url))
    call("limits", "set", "shop", "--concurrency", "3")
    call("limits", "reset", "shop")
    call("limits", "set", "unheard-of", "--concurrency", "3", code=1)
    entries = json.loads(call("audit", "--json").stdout)["items"]
    assert [(entry["action"], entry["what"], entry["jobs"]) for entry in reversed(entries)] == [
        ("tasks.pause", "t", 0),
        ("tenants.pause", "acme", 0),
        ("tenants.resume", "acme", 0),
        ("queues.pause", "mail", 0),
        ("schedules.add", "nightly: 0 3 * * * UTC t", 0),
        ("schedules.add", "hourly: every 1h t", 0),
        ("schedules.pause", "nightly", 0),
        ("schedules.pause", "hourly", 0),
        ("schedules.resume", "nightly", 0),
        ("schedules.run_now", "nightly", 1),
        ("schedules.remove", "nightly", 0),
        ("limits.set", "shop: 3 at once", 0),
        ("limits.reset", "shop", 0),
    ]
    assert {entry["who"] for entry in entries} == {whoami()}


async def declare(url: str) -> None:
    """A limit that there is."""
    async with opened(connect(url)) as store:
        await store.limit("shop", LimitRule(concurrency=9), None)


def test_pruning_leaves_an_entry(url: str) -> None:
    id = json.loads(call("enqueue", "t", "--raw", "--json").stdout)["id"]
    call("jobs", "cancel", id)
    call("prune")
    call("prune", "--done", "0s")
    entry, _ = json.loads(call("audit", "--json").stdout)["items"]
    assert (entry["action"], entry["what"], entry["jobs"]) == ("jobs.prune", "kept: done 0ms, dead 14d", 1)


def test_looking_leaves_none(url: str) -> None:
    for args in (("jobs", "list"), ("queues", "list"), ("dead", "list"), ("tokens", "list"), ("stats",), ("audit",)):
        call(*args)
    assert json.loads(call("audit", "--json").stdout)["items"] == []
    assert "no operator" in call("audit").stderr
    call("audit", "--since", "yesterday", code=2)


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_commands_through_a_server_are_entered_under_the_tokens_name(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store over HTTP writes no entries itself; what the server is asked to write tells what was done."""
    monkeypatch.chdir(tmp_path)
    token = await server.token("admin", name="ops")
    await server.store.limit("shop", LimitRule(concurrency=9), None)
    url = f"http://{token}@127.0.0.1:{server.port}"
    commands = [
        ("schedules", "add", "nightly", "t", "--raw", "--cron", "0 3 * * *"),
        ("schedules", "pause", "nightly"),
        ("schedules", "resume", "nightly"),
        ("schedules", "run-now", "nightly"),
        ("schedules", "add", "nightly", "t", "--raw", "--every", "1h", "--replace"),
        ("schedules", "remove", "nightly"),
        ("limits", "set", "shop", "--concurrency", "3"),
        ("limits", "reset", "shop"),
        ("pause", "--tenant", "acme"),
        ("resume", "--tenant", "acme"),
    ]
    for command in commands:
        await asyncio.to_thread(call, *command, "--store", url)
    entries = await Audit(server.store).read(await server.store.now() - LONG_AGO)
    assert [(entry.action, entry.what, entry.jobs) for entry in reversed(entries)] == [
        ("schedules.add", "nightly: 0 3 * * * UTC t", 0),
        ("schedules.pause", "nightly", 0),
        ("schedules.resume", "nightly", 0),
        ("schedules.run_now", "nightly", 1),
        ("schedules.add", "nightly: every 1h t", 0),
        ("schedules.remove", "nightly", 0),
        ("limits.set", "shop: 3 at once", 0),
        ("limits.reset", "shop", 0),
        ("tenants.pause", "acme", 0),
        ("tenants.resume", "acme", 0),
    ]
    assert {entry.who for entry in entries} == {"ops"}


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_what_workers_write_is_no_operators_deed(server: Running) -> None:
    token = await server.token("work", "enqueue")
    remote = Headrace(f"http://{token}@127.0.0.1:{server.port}")
    ran = asyncio.Event()

    @remote.task(name="tick", limits=[Limit("gate", concurrency=2)])
    async def tick() -> None:
        ran.set()

    remote.schedule("often", every="1s", job=tick.job())
    async with remote.worker(), asyncio.timeout(30):
        await ran.wait()
    await remote.aclose()
    assert "often" in await server.store.records("schedule")
    assert "gate" in await server.store.limits()
    assert await Audit(server.store).read(await server.store.now() - LONG_AGO) == []
