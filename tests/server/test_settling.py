"""How attempts end over HTTP: what is refused as a whole, and what a server keeps of a lease until then."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Headrace
from headrace.model.job import JobState
from headrace.server import leases
from server.running import Running, running
from server.test_work import claim, ended, look, post, put, settle

HUGE = 2**64


@pytest.mark.parametrize("result", [HUGE, -(2**63) - 1, [{"deep": [1, HUGE]}]])
async def test_a_number_that_cannot_be_kept_is_named_and_nothing_is_written(server: Running, result: Any) -> None:
    ids = await put(server, count=3)
    lease = await claim(server.http, limit=3)
    first, second, third = lease["jobs"]
    settlements = [ended(first, result=1), ended(second, result=result), ended(third, "failed", message="no")]
    refused = await post(server.http, "settle", 422, lease=lease["lease"], settlements=settlements)
    assert (refused["code"], refused["path"]) == ("invalid_value", "settlements[1].result")
    assert "send it as text" in refused["detail"]
    assert {(await look(server, id)).state for id in ids} == {JobState.RUNNING}
    settlements[1]["result"] = str(result)
    answer = await post(server.http, "settle", lease=lease["lease"], settlements=settlements)
    assert [each["state"] for each in answer["settlements"]] == ["done", "done", "scheduled"]


async def test_the_largest_numbers_are_kept(server: Running) -> None:
    [id] = await put(server)
    await settle(server.http, await claim(server.http), result=[HUGE - 1, -(2**63)])
    assert (await server.http.get(f"/v1/jobs/{id}/result")).json()["result"] == [HUGE - 1, -(2**63)]


async def test_a_result_over_the_limit_is_named_and_nothing_is_written(
    app: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "settings", app.settings.replace(max_result=2048))
    async with running(app) as server:
        [id] = await put(server)
        lease = await claim(server.http)
        settlements = [ended(lease["jobs"][0], result="x" * 4000)]
        refused = await post(server.http, "settle", 422, lease=lease["lease"], settlements=settlements)
        assert (refused["code"], refused["path"]) == ("result_too_large", "settlements[0].result")
        assert (await look(server, id)).state is JobState.RUNNING
        await settle(server.http, lease, result="x" * 1000)
        assert (await look(server, id)).state is JobState.DONE


async def test_a_position_is_settled_once_in_a_call(server: Running) -> None:
    ids = await put(server, count=2)
    lease = await claim(server.http, limit=2)
    first, second = lease["jobs"]
    twice = [ended(first), ended(second), ended(first, "failed", message="no")]
    refused = await post(server.http, "settle", 422, lease=lease["lease"], settlements=twice)
    assert (refused["code"], refused["path"]) == ("invalid_value", "settlements[2].position")
    assert {(await look(server, id)).state for id in ids} == {JobState.RUNNING}


async def test_a_lease_is_kept_until_its_last_job_is_settled(server: Running) -> None:
    kept = server.service.leases
    await put(server, "resize", "x" * 10_000, count=3)
    lease = await claim(server.http, limit=3)
    assert (len(kept._claimed), kept._jobs) == (1, 3)
    assert kept._bytes > 30_000
    for job, outcome in zip(lease["jobs"], ("succeeded", "released", "failed"), strict=True):
        assert kept._jobs == 3
        await post(server.http, "settle", lease=lease["lease"], settlements=[ended(job, outcome)])
    assert (len(kept._claimed), kept._jobs, kept._bytes) == (0, 0, 0)
    await settle(server.http, lease, status=409)


async def test_a_wrong_id_makes_no_server_forget_what_was_claimed(server: Running) -> None:
    """Else it would ask the store, which knows no positions."""
    ids = await put(server, count=2)
    lease = await claim(server.http, limit=2)
    crossed = [{**ended(job), "id": str(id)} for job, id in zip(lease["jobs"], reversed(ids), strict=True)]
    for _ in range(2):
        await post(server.http, "settle", 409, lease=lease["lease"], settlements=crossed)
    assert {(await look(server, id)).state for id in ids} == {JobState.RUNNING}
    await settle(server.http, lease)


async def test_what_is_kept_is_bounded_by_its_size(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "REMEMBERED_BYTES", 5_000)
    async with running(app) as server:
        await put(server, "resize", "x" * 2_000, count=4)
        held = [await claim(server.http) for _ in range(4)]
        assert len(server.service.leases._claimed) == 2
        # Forgotten jobs are not lost, because the store has them.
        for lease in held:
            await settle(server.http, lease)
        assert server.service.leases._bytes == 0
