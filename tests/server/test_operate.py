"""What operators look at and move: dead letters, queues, workers, schedules, limits, tasks, figures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from headrace import Headrace, JobDead, Limit
from server.running import Running, make_app, running


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def get(server: Running, path: str, **query: Any) -> Any:
    answer = await server.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(server: Running, path: str, status: int = 200, **body: Any) -> Any:
    answer = await server.http.post(path, json=body) if body else await server.http.post(path)
    assert answer.status_code == status, answer.text
    return answer.json()


# ── dead letters ─────────────────────────────────────────────────────────────


async def die(server: Running, *reasons: str) -> list[str]:
    """Jobs that died of these reasons."""
    ids = [str((await post(server, "/v1/jobs", 201, task="fail", args=[reason]))["id"]) for reason in reasons]
    async with server.app.worker():
        for id in ids:
            with pytest.raises(JobDead):
                await server.app.tasks["fail"].handle(id).aresult(timeout=60)
    return ids


async def test_dead_letters_read_as_bugs(server: Running) -> None:
    ids = await die(server, "one", "two")
    found = await get(server, "/v1/dead")
    (group,) = found["items"]
    assert (group["count"], group["tasks"], group["queues"]) == (2, ["fail"], ["broken"])
    assert "RuntimeError" in group["title"]
    assert group["sample"] == ids[-1]
    assert (found["looked_at"], found["more"]) == (2, False)
    assert group["trend"] == [0] * 23 + [2]
    assert (await get(server, "/v1/dead", task="add"))["items"] == []
    seen = await get(server, f"/v1/jobs/{ids[0]}")
    assert seen["history"][0]["message"] == "one"
    assert "Traceback" in seen["history"][0]["traceback"]


async def test_bugs_of_many_dead_letters_take_several_calls(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await die(server, "one", "two", "three")
    monkeypatch.setattr("headrace.server.api.dead.PAGE", 2)
    first = await get(server, "/v1/dead")
    assert (first["items"][0]["count"], first["looked_at"], first["more"], first["next"]) == (2, 2, True, ids[1])
    rest = await get(server, "/v1/dead", before=first["next"])
    assert (rest["items"][0]["count"], rest["looked_at"], rest["more"], rest["next"]) == (1, 1, False, None)
    assert rest["items"][0]["fingerprint"] == first["items"][0]["fingerprint"]
    assert (await server.http.get("/v1/dead", params={"before": "none"})).status_code == 422


async def test_a_look_that_takes_long_answers_what_it_has_found(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await die(server, "one", "two", "three")
    monkeypatch.setattr("headrace.server.visibility.WITHIN", 0.0)
    monkeypatch.setattr("headrace.operate.search._STEP", 1)
    seen: list[int] = []
    count = await get(server, "/v1/jobs/count", text="two")
    while count["next"] is not None:
        assert (count["looked_at"], count["exact"]) == (1, False)
        seen.append(count["count"])
        count = await get(server, "/v1/jobs/count", text="two", before=count["next"])
    assert sum(seen) + count["count"] == 1
    page = await get(server, "/v1/jobs", text="one")
    assert (page["items"], page["next"]) == ([], ids[2])


async def test_dead_letters_are_replayed(server: Running) -> None:
    ids = await die(server, "one", "two", "three")
    group = (await get(server, "/v1/dead"))["items"][0]["fingerprint"]
    assert (await post(server, "/v1/dead/replay", ids=[ids[0], ids[0]]))["changed"] == 1
    assert (await post(server, "/v1/dead/replay", ids=[ids[0]])) == {
        "changed": 0, "refused": 1, "more": False, "next": None,
    }  # fmt: skip
    first = await post(server, "/v1/dead/replay", group=group, limit=1, rate="50/s")
    assert (first["changed"], first["more"]) == (1, True)
    rest = await post(server, "/v1/dead/replay", group=group, before=first["next"])
    assert (rest["changed"], rest["more"]) == (1, False)
    assert {each["state"] for each in (await get(server, "/v1/jobs"))["items"]} == {"ready"}


async def test_dead_letters_are_discarded_with_a_reason(server: Running) -> None:
    ids = await die(server, "one", "two")
    await post(server, "/v1/jobs", 201, task="add", args=[1])
    assert (await post(server, "/v1/dead/discard", ids=[ids[0]], reason="tested"))["changed"] == 1
    assert (await post(server, "/v1/dead/discard", everything=True, reason="tested"))["changed"] == 1
    assert [each["task"] for each in (await get(server, "/v1/jobs"))["items"]] == ["add"]
    actions = [each["action"] for each in (await get(server, "/v1/audit"))["items"]]
    assert actions.count("dead.discard") == 2


async def test_a_choice_of_dead_letters_is_made_on_purpose(server: Running) -> None:
    for path, more in (("/v1/dead/replay", {}), ("/v1/dead/discard", {"reason": "x"})):
        assert code(await server.http.post(path, json=more)) == (422, "invalid_choice")
        both = {"ids": ["01890a5d-ac96-774b-bcce-b302099a0001"], "task": "fail", **more}
        assert code(await server.http.post(path, json=both)) == (422, "invalid_choice")
        assert code(await server.http.post(path, json={"ids": ["x"], **more})) == (422, "invalid_job_id")
        assert code(await server.http.post(path, json={"group": "?", **more})) == (422, "invalid_group")
    assert code(await server.http.post("/v1/dead/discard", json={"everything": True})) == (422, "invalid_field")
    assert code(await server.http.post("/v1/dead/discard", json={"everything": True, "reason": " "})) == (
        422,
        "invalid_field",
    )
    for rate in ("fast", "0/s", "1/h"):
        answer = await server.http.post("/v1/dead/replay", json={"everything": True, "rate": rate})
        assert code(answer) == (422, "invalid_rate")


# ── queues, workers, figures ─────────────────────────────────────────────────


async def test_queues_are_paused_and_resumed(server: Running) -> None:
    await post(server, "/v1/jobs", 201, task="add", args=[1])
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    assert (await post(server, "/v1/queues/default/pause", until=until.isoformat()))["paused"] is True
    queue = {each["name"]: each for each in (await get(server, "/v1/queues"))["items"]}["default"]
    assert (queue["paused"], queue["paused_by"], queue["ready"]) == (True, "local", 1)
    assert datetime.fromisoformat(queue["paused_until"]) == until
    assert (await post(server, "/v1/queues/default/resume"))["paused"] is False
    assert (await post(server, "/v1/queues/other/pause", until="10m"))["until"] is not None
    names = {each["name"]: each["paused"] for each in (await get(server, "/v1/queues"))["items"]}
    assert names["default"] is False
    assert names["other"] is True
    for until_ in ("soon", "2030-01-01", "1970-13-01T00:00:00Z", "0s", "2020-01-01T00:00:00Z"):
        answer = await server.http.post("/v1/queues/default/pause", json={"until": until_})
        assert answer.status_code == 422
    actions = [each["action"] for each in (await get(server, "/v1/audit"))["items"]]
    assert sorted(actions) == ["queues.pause", "queues.pause", "queues.resume"]


async def test_declared_queues_show_what_was_declared(server: Running) -> None:
    queues = {each["name"]: each for each in (await get(server, "/v1/queues"))["items"]}
    assert queues["short"]["max_length"] == 3
    assert queues["foreign"]["foreign"] is True
    assert queues["billing"]["declared"] is False


async def test_workers_are_listed(server: Running) -> None:
    assert await get(server, "/v1/workers") == {"items": [], "next": None}
    async with server.app.worker(concurrency=3) as worker:
        id = str((await post(server, "/v1/jobs", 201, task="add", args=[1]))["id"])
        await server.app.tasks["add"].handle(id).aresult(timeout=60)
        server.service.figures._workers.forget()  # it is known from memory for a second
        (found,) = (await get(server, "/v1/workers"))["items"]
    assert found["slots"] == 3
    assert "add" in found["tasks"]
    assert found["id"] == str(worker.id)


async def test_figures(server: Running) -> None:
    await post(server, "/v1/jobs", 201, task="add", args=[1])
    await post(server, "/v1/jobs", 201, task="add", args=[1], delay="1h")
    stats = await get(server, "/v1/stats")
    assert (stats["ready"], stats["scheduled"], stats["enqueued_total"]) == (1, 1, 2)
    text = await server.http.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'headrace_jobs_ready{queue="default"} 1\n' in text.text
    assert "# TYPE headrace_jobs_enqueued_total counter\n" in text.text
    assert 'headrace_oldest_ready_at_least{queue="default"} 0\n' in text.text
    assert not any(queue["oldest_at_least"] for queue in (await get(server, "/v1/queues"))["items"])


# ── schedules ────────────────────────────────────────────────────────────────


async def test_a_schedules_life(server: Running) -> None:
    asked = {"name": "nightly", "cron": "0 3 * * *", "tz": "Europe/Rome", "job": {"task": "add", "args": [1]}}
    made = await post(server, "/v1/schedules", 201, **asked)
    assert (made["name"], made["cron"], made["task"], made["paused"]) == ("nightly", "0 3 * * *", "add", False)
    assert code(await server.http.post("/v1/schedules", json=asked)) == (409, "schedule_exists")
    changed = await post(server, "/v1/schedules", 201, **{**asked, "cron": "0 4 * * *", "replace": True})
    assert changed["cron"] == "0 4 * * *"
    assert (await post(server, "/v1/schedules/nightly/pause"))["paused_by"] == "local"
    assert (await post(server, "/v1/schedules/nightly/resume"))["paused"] is False
    id = (await post(server, "/v1/schedules/nightly/run-now", 201))["id"]
    assert (await get(server, f"/v1/jobs/{id}"))["task"] == "add"
    (listed,) = (await get(server, "/v1/schedules"))["items"]
    assert listed["last_job"] == id
    assert (await server.http.delete("/v1/schedules/nightly")).status_code == 204
    assert (await get(server, "/v1/schedules")) == {"items": [], "next": None}
    for path in ("pause", "resume", "run-now"):
        assert code(await server.http.post(f"/v1/schedules/nightly/{path}")) == (404, "schedule_not_found")
    assert code(await server.http.delete("/v1/schedules/nightly")) == (404, "schedule_not_found")


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"every": "15m", "cron": "* * * * *"}, "invalid_schedule"),
        ({}, "invalid_schedule"),
        ({"every": "0s"}, "invalid_schedule"),
        ({"every": "soon"}, "invalid_schedule"),
        ({"cron": "0 3 * * *", "tz": "Mars/Olympus"}, "invalid_timezone"),
        ({"cron": "0 3 * * *", "tz": "posixrules"}, "invalid_timezone"),
        ({"cron": "0 3 * * *", "tz": "right/Europe/Rome"}, "invalid_timezone"),
        ({"every": "15m", "catch_up": "some"}, "invalid_schedule"),
        ({"every": "15m", "overlap": "maybe"}, "invalid_field"),
        ({"every": "15m", "name": "a b"}, "invalid_schedule_name"),
        ({"every": "15m", "job": {"task": "add", "args": ["x"]}}, "bad_arguments"),
        ({"every": "15m", "job": {"task": "no.such"}}, "unknown_task"),
    ],
)
async def test_schedules_nobody_means(server: Running, asked: dict[str, Any], problem: str) -> None:
    answer = await server.http.post("/v1/schedules", json={"name": "s", "job": {"task": "add", "args": [1]}, **asked})
    assert code(answer) == (422, problem)


# ── limits and tasks ─────────────────────────────────────────────────────────


async def test_a_limits_figures_are_changed(store_url: str) -> None:
    app = make_app(store_url)

    @app.task(name="call", limits=[Limit("stripe", rate="90/s", burst=30)])
    async def call() -> None: ...

    async with running(app) as server:
        assert code(await server.http.put("/v1/limits/paypal", json={"rate": "50/s"})) == (404, "limit_not_found")
        # The server declares them when it starts, as a worker does.
        await server.service.leases._feedback.declared.wait()
        (found,) = (await get(server, "/v1/limits"))["items"]
        assert (found["name"], found["rate"], found["burst"]) == ("stripe", 90.0, 30.0)
        answer = await server.http.put("/v1/limits/stripe", json={"rate": "50/s"})
        assert answer.json()["limit"]["rate"] == 50.0
        for bad in ({}, {"rate": "fast"}, {"concurrency": 0}, {"burst": -1}):
            assert code(await server.http.put("/v1/limits/stripe", json=bad)) == (422, "invalid_limit")
        assert code(await server.http.put("/v1/limits/a%20b", json={"rate": "1/s"})) == (422, "invalid_limit_name")
        answer = await server.http.delete("/v1/limits/stripe")
        assert answer.json()["limit"]["rate"] == 90.0
        assert code(await server.http.delete("/v1/limits/nothing")) == (404, "limit_not_found")


async def test_tasks_say_what_they_take(server: Running) -> None:
    tasks = {each["name"]: each for each in (await get(server, "/v1/tasks"))["items"]}
    add = tasks["add"]
    assert add["positional"] == ["a", "b"]
    assert add["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert add["returns"] == {"type": "integer"}
    assert tasks["echo"]["parameters"]["additionalProperties"] == {}
    assert tasks["fail"]["max_attempts"] == 1
    assert tasks["charge"]["queue"] == "billing"


async def test_tasks_with_types_of_their_own(store_url: str) -> None:
    from pathlib import Path

    import msgspec
    from pydantic import BaseModel

    class Address(msgspec.Struct):
        street: str

    class Customer(BaseModel):
        name: str

    app = Headrace(store_url)

    async def ship(to: Address, who: Customer, label: Path, *more: int, fast: bool = False) -> Address:
        """Ship a parcel.

        At length.
        """
        return to

    ship.__annotations__ = {"to": Address, "who": Customer, "label": Path, "more": int, "fast": bool, "return": Address}
    app.task(name="ship")(ship)
    async with running(app) as server:
        (task,) = (await get(server, "/v1/tasks"))["items"]
    assert task["does"] == "Ship a parcel."
    properties = task["parameters"]["properties"]
    assert properties["to"] == {"$ref": "#/$defs/Address"}
    assert task["parameters"]["$defs"]["Address"]["properties"] == {"street": {"type": "string"}}
    assert properties["who"]["properties"]["name"]["type"] == "string"
    assert properties["label"] == {"type": "string"}
    assert task["parameters"]["required"] == ["to", "who", "label"]
