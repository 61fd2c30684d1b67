"""What changed lately, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from conformance.test_workers import presence
from headrace import Headrace, JobDead
from headrace.cli.root import root
from headrace.model.lease import Presence
from headrace.operate.changes import deploys
from server.running import Running

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def read(server: Running, **params: str) -> list[dict[str, Any]]:
    answer = await server.http.get("/v1/changes", params=params)
    assert answer.is_success, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def fail(server: Running, why: str) -> None:
    job = await server.app.tasks["fail"].aenqueue(why)
    async with server.app.worker(queues=["broken"]):
        with pytest.raises(JobDead):
            await job.aresult(timeout=60)


async def test_actions_deploys_and_new_failures(server: Running) -> None:
    await fail(server, "no route")
    await fail(server, "no route")
    await server.http.post("/v1/queues/mail/pause")
    await server.http.post("/v1/queues/mail/resume")
    now = await server.store.now()
    await server.store.heartbeat([], timedelta(minutes=1), replace(presence(), started_at=now))
    items = await read(server)
    assert [(one["kind"], one["action"]) for one in items] == [
        ("deploy", "workers.start"),
        ("action", "queues.resume"),
        ("action", "queues.pause"),
        ("failure", "failures.new"),
    ]
    deploy, _, pause, failure = items
    assert deploy["what"] == "host:42 started, headrace 0.1.0"
    assert (pause["what"], pause["by"]) == ("mail", "local")
    assert (failure["jobs"], bool(failure["id"])) == (2, True)
    assert "RuntimeError" in failure["what"]
    assert [one["action"] for one in await read(server, limit="1")] == ["workers.start"]


async def test_moves_of_jobs_and_tokens_are_left_out(server: Running) -> None:
    job = (await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})).json()["id"]
    await server.http.post(f"/v1/jobs/{job}/cancel")
    assert await read(server) == []


async def test_since_bounds_it_and_must_be_a_duration(server: Running) -> None:
    started = await server.store.now() - timedelta(hours=2)
    await server.store.heartbeat([], timedelta(minutes=1), replace(presence(), started_at=started))
    assert await read(server) == []
    assert len(await read(server, since="3h")) == 1
    assert (await server.http.get("/v1/changes", params={"since": "soon"})).status_code == 422


async def test_a_bound_token_sees_no_changes(server: Running) -> None:
    async with server.client(await server.token("read", tenant="acme")) as client:
        assert (await client.get("/v1/changes")).status_code == 404


def started(minutes: float, version: str = "1.0", tasks: tuple[str, ...] = ("a",)) -> Presence:
    return replace(presence(), started_at=NOW + timedelta(minutes=minutes), version=version, tasks=tasks)


def test_workers_that_start_together_are_one_deploy() -> None:
    old = started(-600)
    first, second = started(1), started(4, tasks=("a", "b"))
    third = started(30, version="1.1", tasks=("b", "c"))
    changes = deploys([third, old, second, first], NOW)
    assert [(change.at, change.what) for change in changes] == [
        (first.started_at, "2 workers started, headrace 1.0, with new tasks: b"),
        (third.started_at, "host:42 started, headrace 1.1, with new tasks: c"),
    ]


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_the_command_line_lists_changes(server: Running, app: Headrace) -> None:
    await server.http.post("/v1/queues/mail/pause")
    shown = await asyncio.to_thread(CliRunner().invoke, root, ["changes", "--url", app.settings.url])
    assert shown.exit_code == 0, shown.output
    assert "queues.pause" in shown.output
