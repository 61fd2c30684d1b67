"""Jobs over HTTP: in, found, looked at, explained and moved."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import Headrace, QueueFull, Unique
from headrace.model.job import Batch, NewJob, job_id, new_batch, parse_id
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.step import Step
from headrace.server import asgi
from headrace.task.codec import JobOptions, decode_options, encode_options
from server.running import Calls, Running, make_app, running


async def make(server: Running, path: str = "/v1/jobs", **asked: Any) -> str:
    answer = await server.http.post(path, json=asked)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def show(server: Running, id: str) -> dict[str, Any]:
    answer = await server.http.get(f"/v1/jobs/{id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# ── in ───────────────────────────────────────────────────────────────────────


async def test_a_job_goes_in_and_runs(server: Running) -> None:
    id = await make(server, task="add", args=[40], kwargs={"b": 2})
    async with server.app.worker():
        assert await server.app.tasks["add"].handle(id).aresult(timeout=60) == 42
    seen = await show(server, id)
    assert (seen["state"], seen["attempt"]) == ("done", 1)
    assert [each["event"] for each in seen["timeline"]] == ["enqueued", "claimed", "done"]


async def test_everything_that_a_job_may_ask_for(server: Running) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    id = await make(
        server,
        task="echo",
        args=["x"],
        queue="other",
        priority=7,
        run_at=due.isoformat(),
        tenant="acme",
        key="k",
        timeout="5s",
        max_attempts=2,
        expires="2h",
        deadline=(due + timedelta(days=1)).isoformat(),
    )
    seen = await show(server, id)
    assert (seen["queue"], seen["priority"], seen["tenant"], seen["state"]) == ("other", 7, "acme", "scheduled")
    assert datetime.fromisoformat(seen["run_at"]) == due
    assert seen["options"]["timeout"] == 5
    assert seen["options"]["max_attempts"] == 2
    assert seen["options"]["expires"] == 7200
    (job,) = await server.store.get([parse_id(id)])
    assert job is not None
    assert decode_options(job.options).deadline == due + timedelta(days=1)


async def test_the_steps_of_a_job(server: Running) -> None:
    secret = await make(server, task="login", args=["ada", "hidden-42"])
    plain = await make(server, task="echo", args=["x"])
    lease = await server.store.claim(Ask(new_worker_id(), ("default",), 10, timedelta(minutes=1), new_token()))
    assert lease is not None
    at = datetime(2026, 1, 1, tzinfo=UTC)
    step = Step("charge[eu]", 0, b"", msgspec.msgpack.encode({"password": "hidden-42"}), at)
    await server.store.add_steps(lease.token, [(0, step), (1, step), (1, Step("none", 0, b"d", None, at))])
    answer = (await server.http.get(f"/v1/jobs/{plain}/steps")).json()
    assert answer == {
        "items": [
            {"name": "charge[eu]", "number": 0, "at": "2026-01-01T00:00:00Z", "value": {"password": "hidden-42"}},
            {"name": "none", "number": 0, "at": "2026-01-01T00:00:00Z", "value": None},
        ],
        "next": None,
    }
    masked = await server.http.get(f"/v1/jobs/{secret}/steps")
    assert "hidden-42" not in masked.text
    assert masked.json()["items"][0]["value"] == "(hidden: the task has redacted fields)"
    assert code(await server.http.get(f"/v1/jobs/{uuid4()}/steps"))[0] == 404


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


async def stored_trace(server: Running, id: str) -> str | None:
    (job,) = await server.store.get([parse_id(id)])
    assert job is not None
    return decode_options(job.options).trace


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"task": "echo", "args": ["x"]}),
        ("/enqueue", {"type": "echo", "payload": ["x"]}),
        ("/v1/jobs/batch", {"jobs": [{"task": "echo", "args": ["x"]}]}),
    ],
)
async def test_the_header_traceparent_goes_with_the_job(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = await server.http.post(path, json=body, headers={"traceparent": TRACE})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    id = made["ids"][0] if "ids" in made else made["id"]
    assert await stored_trace(server, id) == TRACE
    seen = await show(server, id)
    assert (seen["trace"], seen["options"]) == (TRACE, {})


async def test_a_job_links_to_the_page_of_its_trace(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "settings", app.settings.replace(trace_url="https://tempo.example/{trace_id}/view"))
    strange = NewJob("echo", b"\x92\x90\x80", Lane(), options=encode_options(JobOptions(trace='x" onclick=-y')))
    batch = Batch(new_batch(), [strange])
    async with running(app) as server:
        answer = await server.http.post("/v1/jobs", json={"task": "echo"}, headers={"traceparent": TRACE})
        await server.store.enqueue(batch)
        shown = (await server.http.get(f"/v1/jobs/{answer.json()['id']}")).json()
        assert shown["trace_url"] == f"https://tempo.example/{TRACE.split('-')[1]}/view"
        shown = (await server.http.get(f"/v1/jobs/{job_id(batch.id, 0)}")).json()
        assert shown["trace_url"] is None


async def test_the_field_trace_counts_before_the_header(server: Running) -> None:
    asked = {"task": "echo", "args": ["x"], "trace": TRACE}
    answer = await server.http.post("/v1/jobs", json=asked, headers={"traceparent": OTHER})
    assert await stored_trace(server, answer.json()["id"]) == TRACE
    jobs = {"jobs": [asked, {"task": "echo", "args": ["y"]}]}
    ids = (await server.http.post("/v1/jobs/batch", json=jobs, headers={"traceparent": OTHER})).json()["ids"]
    assert [await stored_trace(server, id) for id in ids] == [TRACE, OTHER]


async def test_a_broken_header_is_left_out_and_a_broken_field_is_refused(server: Running) -> None:
    for text in ("", "rubbish", TRACE + "-more", "ÿ".encode("latin-1")):
        answer = await server.http.post("/v1/jobs", json={"task": "echo"}, headers={b"traceparent": text})  # type: ignore[dict-item]
        assert answer.status_code == 201, answer.text
        assert await stored_trace(server, answer.json()["id"]) is None
    refused = await server.http.post("/v1/jobs", json={"task": "echo", "trace": "rubbish"})
    assert code(refused) == (422, "invalid_trace")
    assert refused.json()["path"] == "trace"


async def test_two_traces_with_one_key_are_one_job(server: Running) -> None:
    asked = {"task": "echo", "args": ["x"], "key": "k"}
    first = await server.http.post("/v1/jobs", json=asked, headers={"traceparent": TRACE})
    second = await server.http.post("/v1/jobs", json=asked, headers={"traceparent": OTHER})
    assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])
    assert await stored_trace(server, first.json()["id"]) == TRACE


async def test_a_delay(server: Running) -> None:
    seen = await show(server, await make(server, task="echo", delay="5m"))
    wait = datetime.fromisoformat(seen["run_at"]) - datetime.fromisoformat(seen["enqueued_at"])
    assert timedelta(minutes=5) <= wait < timedelta(minutes=6)
    both = await server.http.post("/v1/jobs", json={"task": "echo", "delay": "5m", "run_at": "2030-01-01T00:00:00Z"})
    assert code(both) == (422, "invalid_run_at")


async def test_a_tasks_own_tenant_is_the_jobs(server: Running) -> None:
    seen = await show(server, await make(server, task="charge", args=[7, "acme"]))
    assert (seen["queue"], seen["tenant"]) == ("billing", "acme")
    seen = await show(server, await make(server, task="charge", args=[7, "acme"], tenant="other"))
    assert seen["tenant"] == "other"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "is missing 'a'"),
        ({"args": [1, 2, 3]}, "takes 2 positional arguments"),
        ({"args": ["x"]}, "argument 'a': expected `int`"),
        ({"args": [1.5]}, "argument 'a'"),
        ({"kwargs": {"a": 1, "c": 2}}, "has no parameter 'c'"),
        ({"args": [1], "kwargs": {"a": 1}}, "twice"),
        ({"args": {"a": 1}}, "is not a set of arguments"),
        ({"kwargs": [1]}, "is not a set of arguments"),
        ({"args": None}, "is not a set of arguments"),
    ],
)
async def test_arguments_are_the_tasks_own(server: Running, arguments: dict[str, Any], complaint: str) -> None:
    answer = await server.http.post("/v1/jobs", json={"task": "add", **arguments})
    assert code(answer) == (422, "bad_arguments")
    assert complaint in answer.json()["detail"]
    assert answer.json()["path"].startswith(("args", "kwargs"))


async def test_a_bad_argument_is_named(server: Running) -> None:
    by_place = await server.http.post("/v1/jobs", json={"task": "add", "args": [1, "x"]})
    assert by_place.json()["path"] == "args.b"
    by_name = await server.http.post(
        "/v1/jobs/batch", json={"jobs": [{"task": "add", "args": [1], "kwargs": {"b": []}}]}
    )
    assert by_name.json()["path"] == "jobs[0].kwargs.b"


async def test_a_task_that_only_others_know(server: Running) -> None:
    id = await make(server, task="thumbnail", queue="foreign", args=[1, {"b": [None]}], kwargs={"z": "ü"})
    seen = await show(server, id)
    assert (seen["queue"], seen["task"]) == ("foreign", "thumbnail")
    assert seen["arguments"] == {"args": [1, {"b": [None]}], "kwargs": {"z": "ü"}}
    for bad in ({"args": {}}, {"kwargs": []}, {"args": 1}):
        answer = await server.http.post("/v1/jobs", json={"task": "thumbnail", "queue": "foreign", **bad})
        assert code(answer) == (422, "bad_arguments")
    answer = await server.http.post("/v1/jobs", json={"task": "thumbnail", "queue": "other"})
    assert code(answer) == (422, "unknown_task")


async def test_a_foreign_job_takes_the_same_options(server: Running) -> None:
    id = await make(
        server, task="thumbnail", queue="foreign", priority=3, delay="1m", tenant="acme", timeout="5s", max_attempts=1
    )
    seen = await show(server, id)
    assert (seen["priority"], seen["tenant"], seen["state"]) == (3, "acme", "scheduled")
    assert seen["options"] == {"timeout": 5.0, "max_attempts": 1}


async def test_numbers_beyond_64_bits(server: Running) -> None:
    big = 2**70
    answer = await server.http.post("/v1/jobs", json={"task": "echo", "args": [big]})
    assert answer.status_code == 422
    answer = await server.http.post("/v1/jobs", json={"task": "thumbnail", "queue": "foreign", "args": [big]})
    assert answer.status_code in {201, 422}
    if answer.status_code == 201:
        assert (await show(server, answer.json()["id"]))["arguments"]["args"] == [big]


async def test_a_batch(server: Running) -> None:
    jobs = [{"task": "add", "args": [n]} for n in range(1000)]
    answer = await server.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 201
    ids = answer.json()["ids"]
    assert len(set(ids)) == 1000
    assert answer.json()["existing"] == []
    assert (await show(server, ids[7]))["arguments"]["args"] == [7]


async def test_a_batch_meets_keys_that_were_there(server: Running) -> None:
    id = await make(server, task="echo", args=[1], key="k")
    jobs = [{"task": "echo", "args": [0]}, {"task": "echo", "args": [1], "key": "k"}]
    answer = await server.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert answer.json()["ids"][1] == id
    assert answer.json()["existing"] == [1]
    jobs[1]["args"] = [2]
    answer = await server.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert code(answer) == (409, "idempotency_conflict")
    assert len((await server.http.get("/v1/jobs")).json()["items"]) == 2


async def test_a_batch_is_made_once_under_one_key(server: Running) -> None:
    jobs: list[dict[str, Any]] = [{"task": "add", "args": [1]}, {"task": "add", "args": [1]}, {"task": "echo"}]
    jobs[2]["key"] = "own"
    key = {"Idempotency-Key": "order-7"}
    first = await server.http.post("/v1/jobs/batch", json={"jobs": jobs}, headers=key)
    again = await server.http.post("/v1/jobs/batch", json={"jobs": jobs}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert len(set(first.json()["ids"])) == 3
    assert again.json() == {"ids": first.json()["ids"], "existing": [0, 1, 2]}
    own = await server.http.post("/v1/jobs", json={"task": "echo", "key": "own"})
    assert (own.status_code, own.json()["id"]) == (200, first.json()["ids"][2])
    jobs[1]["args"] = [2]
    changed = await server.http.post("/v1/jobs/batch", json={"jobs": jobs}, headers=key)
    assert code(changed) == (409, "idempotency_conflict")
    assert len((await server.http.get("/v1/jobs")).json()["items"]) == 3


@pytest.mark.parametrize("key", [b"\xff", b"x" * 256, b"", b"a\tb"])
async def test_a_batch_under_a_bad_key(server: Running, key: bytes) -> None:
    jobs = {"jobs": [{"task": "echo"}]}
    answer = await server.http.post("/v1/jobs/batch", json=jobs, headers=[(b"Idempotency-Key", key)])
    assert code(answer) == (422, "invalid_key")


async def test_the_short_form(server: Running) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    asked = {"type": "add", "payload": {"a": 1, "b": 2}, "run_at": due.isoformat()}
    answer = await server.http.post("/enqueue", json=asked)
    assert answer.status_code == 201
    assert answer.json()["id"] == answer.json()["task_id"]
    seen = await show(server, answer.json()["id"])
    assert (seen["task"], seen["state"], seen["arguments"]["args"]) == ("add", "scheduled", [1, 2])
    by_place = await server.http.post("/enqueue", json={"type": "add", "payload": [1]})
    assert by_place.status_code == 201
    for payload in (1, "x", None):
        assert code(await server.http.post("/enqueue", json={"type": "add", "payload": payload})) == (
            422,
            "bad_arguments",
        )


async def test_single_jobs_share_a_commit(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    enqueue = server.store.enqueue
    asked = Calls(server.service.client._coalescer, "put")

    async def counting(batch: Any) -> Any:
        sizes.append(len(batch.jobs))
        if len(sizes) == 1:
            await asked(50)  # the first commit takes as long as the others need to come
        return await enqueue(batch)

    monkeypatch.setattr(server.store, "enqueue", counting)
    calls = (server.http.post("/v1/jobs", json={"task": "add", "args": [n]}) for n in range(50))
    answers = await asyncio.gather(*calls)
    assert {each.status_code for each in answers} == {201}
    assert len({each.json()["id"] for each in answers}) == 50
    assert sizes == [1, 49]


async def test_one_conflict_is_not_the_others(server: Running) -> None:
    await make(server, task="echo", args=[0], key="k")
    calls = [
        server.http.post("/v1/jobs", json={"task": "echo", "args": [n], "key": "k" if n == 5 else f"k{n}"})
        for n in range(10)
    ]
    answers = await asyncio.gather(*calls)
    assert [each.status_code for each in answers] == [201] * 5 + [409] + [201] * 4


# ── back-pressure ────────────────────────────────────────────────────────────


async def test_a_full_queue_says_come_back_later(server: Running) -> None:
    for n in range(3):
        await make(server, task="echo", args=[n], queue="short")
    answer = await server.http.post("/v1/jobs", json={"task": "echo", "queue": "short"})
    assert code(answer) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    many = {"jobs": [{"task": "echo", "queue": "short"}, {"task": "echo"}]}
    assert code(await server.http.post("/v1/jobs/batch", json=many)) == (429, "queue_full")
    assert (await server.http.post("/v1/jobs", json={"task": "echo"})).status_code == 201
    with pytest.raises(QueueFull, match="is full, its max_length is 3"):
        await server.app.tasks["echo"].using(queue="short").aenqueue(1)
    with pytest.raises(QueueFull):
        await server.app.aenqueue_many([server.app.tasks["echo"].using(queue="short").job(1)])
    found = await server.http.get("/v1/jobs", params={"queue": "short"})
    assert len(found.json()["items"]) == 3


# ── found ────────────────────────────────────────────────────────────────────


async def test_pages(server: Running) -> None:
    ids = [await make(server, task="add", args=[n]) for n in range(7)]
    seen: list[str] = []
    before: str | None = None
    while True:
        query = {"limit": 3} if before is None else {"limit": 3, "before": before}
        page = (await server.http.get("/v1/jobs", params=query)).json()
        seen += [each["id"] for each in page["items"]]
        before = page["next"]
        if before is None:
            break
    assert seen == ids[::-1]


async def test_filters(server: Running) -> None:
    ready = await make(server, task="add", args=[1])
    later = await make(server, task="echo", delay="1h", tenant="acme", queue="other")

    async def ids(**query: Any) -> list[str]:
        answer = await server.http.get("/v1/jobs", params=query)
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["items"]]

    assert await ids(state="ready") == [ready]
    assert await ids(state=["ready", "scheduled"]) == [later, ready]
    assert await ids(queue="other") == [later]
    assert await ids(task="add") == [ready]
    assert await ids(tenant="acme") == [later]
    assert await ids(since="2020-01-01T00:00:00Z", until="2021-01-01T00:00:00Z") == []
    assert await ids(state="dead") == []
    for bad in ({"state": "lost"}, {"since": "yesterday"}, {"since": "2020-01-01T00:00:00"}, {"colour": "red"}):
        assert (await server.http.get("/v1/jobs", params=bad)).status_code == 422


# ── moved ────────────────────────────────────────────────────────────────────


async def test_cancel_retry_delete(server: Running) -> None:
    id = await make(server, task="add", args=[1])
    assert code(await server.http.post(f"/v1/jobs/{id}/retry")) == (409, "not_retryable")
    answer = await server.http.post(f"/v1/jobs/{id}/cancel", json={"reason": "no more"})
    assert answer.json() == {"id": id, "answer": "cancelled"}
    assert (await show(server, id))["note"] == "no more"
    assert (await server.http.post(f"/v1/jobs/{id}/cancel")).json()["answer"] == "finished"
    assert (await server.http.post(f"/v1/jobs/{id}/retry")).json() == {"id": id}
    assert (await show(server, id))["state"] == "ready"
    assert (await server.http.delete(f"/v1/jobs/{id}")).status_code == 204
    for answer in (
        await server.http.get(f"/v1/jobs/{id}"),
        await server.http.get(f"/v1/jobs/{id}/explain"),
        await server.http.delete(f"/v1/jobs/{id}"),
        await server.http.post(f"/v1/jobs/{id}/cancel"),
        await server.http.post(f"/v1/jobs/{id}/retry"),
    ):
        assert code(answer) == (404, "job_not_found")
    entries = (await server.http.get("/v1/audit")).json()["items"]
    assert {"jobs.cancel", "jobs.retry", "jobs.delete"} <= {each["action"] for each in entries}
    assert {each["who"] for each in entries} == {"local"}


async def test_why_a_job_waits(server: Running) -> None:
    id = await make(server, task="add", args=[1])
    answer = (await server.http.get(f"/v1/jobs/{id}/explain")).json()
    assert answer["reason"] == "no_worker"
    assert "default" in answer["sentence"]


async def test_many_at_once(server: Running) -> None:
    ids = [await make(server, task="add", args=[n]) for n in range(5)]
    await make(server, task="echo")

    async def bulk(**asked: Any) -> dict[str, Any]:
        answer = await server.http.post("/v1/jobs/bulk", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    first = await bulk(action="cancel", filter={"task": "add"}, limit=3)
    assert (first["found"], first["changed"], first["more"], first["next"]) == (3, 3, True, ids[2])
    second = await bulk(action="cancel", filter={"task": "add"}, limit=3, before=first["next"])
    assert second == {"found": 2, "changed": 2, "more": False, "next": None}
    assert (await bulk(action="retry", filter={"state": ["cancelled"]}))["changed"] == 5
    assert (await bulk(action="delete", ids=ids[:2]))["changed"] == 2
    assert (await bulk(action="delete", everything=True))["changed"] == 4
    for bad in ({}, {"filter": {}}, {"ids": ids, "filter": {"task": "add"}}, {"ids": ids, "everything": True}):
        answer = await server.http.post("/v1/jobs/bulk", json={"action": "delete", **bad})
        assert code(answer) == (422, "invalid_choice")
    answer = await server.http.post("/v1/jobs/bulk", json={"action": "explode", "everything": True})
    assert code(answer) == (422, "invalid_field")


# ── locks, tenants, mounting ─────────────────────────────────────────────────


async def test_a_lock_that_is_held_answers_with_its_holder(store_url: str) -> None:
    app = make_app(store_url)

    @app.task(name="once", unique=Unique())
    async def once(n: int = 0) -> None: ...

    async with running(app) as server:
        first = await server.http.post("/v1/jobs", json={"task": "once"})
        second = await server.http.post("/v1/jobs", json={"task": "once"})
        assert [first.status_code, second.status_code] == [201, 200]
        assert first.json() == second.json()
        batch = await server.http.post(
            "/v1/jobs/batch", json={"jobs": [{"task": "once"}, {"task": "add", "args": [1]}]}
        )
        assert batch.json()["existing"] == [0]
        await server.http.post(f"/v1/jobs/{first.json()['id']}/cancel")
        assert (await server.http.post("/v1/jobs", json={"task": "once"})).status_code == 201
        # The answer must not reveal the tenant of the job that holds the lock.
        token = await server.token("enqueue", tenant="t1")
        async with server.client(token) as client:
            for path, asked in (
                ("/v1/jobs", {"task": "once"}),
                ("/v1/jobs/batch", {"jobs": [{"task": "once"}]}),
                ("/enqueue", {"type": "once"}),
            ):
                assert code(await client.post(path, json=asked)) == (409, "unique_conflict")


async def test_where_tenants_do_not_take_turns_they_are_still_tenants(store_url: str) -> None:
    app = make_app(store_url)
    app.queue("unfair", fair="off", foreign=True)
    async with running(app) as server:
        known = await make(server, task="echo", queue="unfair", tenant="t1")
        foreign = await make(server, task="elsewhere", queue="unfair", tenant="t1")
        mine = await server.token("read", tenant="t1")
        theirs = await server.token("read", tenant="t2")
        async with server.client(mine) as one, server.client(theirs) as two:
            for id in (known, foreign):
                seen = await one.get(f"/v1/jobs/{id}")
                assert seen.json()["tenant"] == "t1"
                assert code(await two.get(f"/v1/jobs/{id}")) == (404, "job_not_found")


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_it_can_be_mounted(app: Headrace) -> None:
    frame = asgi(app)
    outside = Starlette(routes=[Mount("/queue", frame)])
    transport = httpx2.ASGITransport(outside, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        made = await client.post("/queue/v1/jobs", json={"task": "add", "args": [1]})
        assert made.status_code == 201
        assert (await client.get(f"/queue/v1/jobs/{made.json()['id']}")).status_code == 200
        assert (await client.get("/queue/docs")).status_code == 200
        assert (await client.get("/queue/", headers={"Accept": "text/html"})).status_code == 200
        assert code(await client.get("/queue/v1/nothing")) == (404, "not_found")
    await frame.aclose()
    await app.aclose()


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_a_body_that_nobody_reads_ends_the_connection(server: Running) -> None:
    for path in ("/v1/nothing", "/v1/workers"):
        answer = await server.http.post(path, content=b" " * 100_000)
        assert answer.status_code in {404, 405}
    answer = await server.http.put("/v1/workers", content=b" " * 100_000)
    assert answer.headers["connection"] == "close"
    assert (await server.http.put("/v1/workers", content=b" ")).headers.get("connection") != "close"


async def test_an_explanation_has_the_calls_that_help(server: Running) -> None:
    """Each caller sees the calls that it may make, and making one ends the reason."""
    order = {"task": "charge", "kwargs": {"order": 7, "shop": "acme"}}
    id = (await server.http.post("/v1/jobs", json=order)).json()["id"]
    later = (await server.http.post("/v1/jobs", json={**order, "delay": "1h"})).json()["id"]
    await server.http.post("/v1/pauses", json={"tenant": "acme"})
    await server.http.post("/v1/pauses", json={"queue": "billing"})
    tokens = {
        "operator": await server.token("read", "operate"),
        "reader": await server.token("read"),
        "acme": await server.token("read", "operate", tenant="acme"),
    }
    labels: dict[str, list[str]] = {}
    for name, token in tokens.items():
        async with server.client(token) as client:
            helps = (await client.get(f"/v1/jobs/{id}/explain")).json()["help"]
            labels[name] = [help["label"] for help in helps]
    both = ["Resume queue billing", "Resume tenant acme"]
    assert labels == {"operator": both, "reader": [], "acme": both[1:]}
    async with server.client(tokens["operator"]) as client:
        for path in (f"/v1/jobs/{id}", f"/v1/jobs/{later}"):
            why = (await client.get(f"{path}/explain")).json()
            for help in why["help"]:
                assert help["safe"]
                assert help["command"].removeprefix("headrace ") in why["sentence"]
                answer = await client.request(help["method"], help["path"], json=help["body"])
                assert answer.status_code == 200, answer.text
            assert (await client.get(f"{path}/explain")).json()["reason"] == "no_worker"
