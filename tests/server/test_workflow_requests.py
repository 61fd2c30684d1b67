"""`POST /v1/workflows`: a whole graph in one call, with the checks of other enqueue calls, or nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx2
import pytest

from headrace import Headrace, Unique
from headrace.client.graph import MOST_JOBS
from headrace.model.job import JobId, JobState, job_id, new_batch
from headrace.model.records import Filter
from headrace.task.codec import decode_options
from server.running import Running

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def job(name: str, task: str = "add", *args: Any, **more: Any) -> dict[str, Any]:
    return {"as": name, "task": task, "args": list(args), **more}


def out(name: str) -> dict[str, str]:
    return {"$out": name}


async def send(client: httpx2.AsyncClient, *jobs: Any, **more: Any) -> httpx2.Response:
    headers = more.pop("headers", {})
    return await client.post("/v1/workflows", json={"jobs": list(jobs), **more}, headers=headers)


async def accepted(client: httpx2.AsyncClient, *jobs: Any, **more: Any) -> Any:
    answer = await send(client, *jobs, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def stored(server: Running) -> int:
    return len((await server.store.find(Filter(), limit=1000)).jobs)


async def result(server: Running, id: str) -> Any:
    answer = (await server.http.get(f"/v1/jobs/{id}/result", params={"wait": "30s"})).json()
    assert answer["state"] == "done", answer
    return answer["result"]


# ── what is stored ───────────────────────────────────────────────────────────


async def test_jobs_in_any_order_run_after_what_they_follow(server: Running, app: Headrace) -> None:
    placed = await accepted(
        server.http,
        {"as": "sum", "task": "add", "args": [out("one")], "kwargs": {"b": out("two")}},
        job("list", "echo", [out("one"), {"deep": out("sum")}]),
        job("two", "add", 2),
        job("last", "echo", "end", after=["list", "two"], when="ended", priority=5),
        job("one", "add", 1),
    )
    ids = placed["ids"]
    assert list(ids) == ["sum", "list", "two", "last", "one"]
    assert (placed["groups"], placed["existing"]) == ({}, [])
    [last] = await server.store.get([JobId(UUID(ids["last"]))])
    assert last is not None
    assert (last.state, last.priority) == (JobState.BLOCKED, 5)
    async with app.worker():
        assert await result(server, ids["sum"]) == 3
        assert await result(server, ids["list"]) == [1, {"deep": 3}]
        assert await result(server, ids["last"]) == "end"


async def test_a_group_is_counted_and_gives_its_results(server: Running, app: Headrace) -> None:
    placed = await accepted(
        server.http,
        *(job(f"n{n}", "add", n) for n in range(5)),
        job("all", "echo", out("numbers")),
        groups=[{"as": "numbers", "members": ["n4", "n3", "n2", "n1", "n0"], "label": "five"}],
    )
    [group] = (await server.http.get("/v1/groups")).json()["items"]
    assert (group["id"], group["label"], group["size"]) == (placed["groups"]["numbers"], "five", 5)
    async with app.worker():
        assert await result(server, placed["ids"]["all"]) == [0, 1, 2, 3, 4]


async def test_stored_jobs_and_groups_are_followed_by_id(server: Running, app: Headrace) -> None:
    first = await accepted(
        server.http,
        job("a", "add", 1),
        job("b", "add", 2),
        job("c", "echo", after=["ab"]),
        groups=[{"as": "ab", "members": ["a", "b"]}],
    )
    a, group = first["ids"]["a"], first["groups"]["ab"]
    placed = await accepted(
        server.http,
        job("next", "add", out(a), 10),
        job("both", "echo", [out("next"), out(group)]),
        job("end", "echo", "over", after=[group], when="ended"),
    )
    async with app.worker():
        assert await result(server, placed["ids"]["next"]) == 11
        assert await result(server, placed["ids"]["both"]) == [11, [1, 2]]
        assert await result(server, placed["ids"]["end"]) == "over"


async def test_a_job_for_another_language_gets_results(server: Running, app: Headrace) -> None:
    placed = await accepted(
        server.http,
        job("one", "add", 1),
        job("far", "resize", queue="foreign", tenant="acme") | {"kwargs": {"size": {"x": out("one")}}},
        job("after", "resize", 7, queue="foreign", after=["one"]),
    )
    async with app.worker():
        await result(server, placed["ids"]["one"])
    claimed = (await server.http.post("/v1/claim", json={"queues": ["foreign"], "limit": 5, "wait": 30})).json()
    by_id = {one["id"]: one for one in claimed["jobs"]}
    assert by_id[placed["ids"]["far"]]["kwargs"] == {"size": {"x": 1}}
    assert by_id[placed["ids"]["after"]]["args"] == [7]


async def test_a_workflow_that_is_sent_again_is_stored_once(server: Running) -> None:
    key = str(new_batch())
    jobs = [job("a", "add", 1), job("b", "add", out("a")), job("c", "echo", after=["ab"])]
    groups = [{"as": "ab", "members": ["a", "b"], "label": "pair"}]
    headers = {"Idempotency-Key": key, "traceparent": TRACE}
    first = await accepted(server.http, *jobs, groups=groups, headers=headers)
    assert await accepted(server.http, *jobs, groups=groups, headers=headers) == first
    assert {UUID(id).int >> 80 for id in first["ids"].values()} == {UUID(key).int >> 80}
    assert await stored(server) == 3
    [one] = await server.store.get([JobId(UUID(first["ids"]["a"]))])
    assert one is not None
    assert decode_options(one.options).trace == TRACE
    other = await accepted(server.http, *jobs[:2], headers=headers)
    assert not set(other["ids"].values()) & set(first["ids"].values())


async def test_a_key_without_a_time_of_today_is_refused(server: Running) -> None:
    long_ago, too_late = UUID(int=7 << 76 | 0b10 << 62), UUID(int=((1 << 48) - 1) << 80 | 7 << 76 | 0b10 << 62)
    for key in ("order-7", "21a5bfdd-4ff2-4000-adba-3878a74eaca6", str(long_ago), str(too_late), "ä"):
        answer = await send(server.http, job("a", "add", 1), headers={"Idempotency-Key": key.encode()})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_key"), key
    assert await stored(server) == 0


async def test_a_key_of_one_job_meets_the_earlier_job(server: Running) -> None:
    first = await accepted(server.http, job("a", "add", 1, key="k"), job("b", "echo", after=["a"]))
    again = await accepted(server.http, job("a", "add", 1, key="k"), job("b", "echo", after=["a"]))
    assert again["existing"] == ["a"]
    assert again["ids"]["a"] == first["ids"]["a"]
    assert again["ids"]["b"] != first["ids"]["b"]
    assert await stored(server) == 3
    answer = await send(server.http, job("a", "add", 2, key="k"), job("b", "echo", after=["a"]))
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")
    assert await stored(server) == 3


async def test_a_unique_task_may_take_results(server: Running, app: Headrace) -> None:
    @app.task(name="report", unique=Unique(key=lambda total, day: day))
    async def report(total: int, day: str) -> str:
        return f"{day}: {total}"

    jobs = [job("a", "add", 1), job("r", "report", out("a"), "monday")]
    first = await accepted(server.http, *jobs)
    again = await accepted(server.http, *jobs)
    assert (again["existing"], again["ids"]["r"]) == (["r"], first["ids"]["r"])
    async with app.worker():
        assert await result(server, first["ids"]["r"]) == "monday: 1"


# ── what is refused, and stores nothing ──────────────────────────────────────

A = job("a", "add", 1)
GONE = str(job_id(new_batch(), 3))

REFUSED: dict[str, tuple[list[Any], dict[str, Any], int, str, str | None]] = {
    "none": ([], {}, 422, "batch_empty", "jobs"),
    "a circle": (
        [job("a", "add", out("c")), job("b", "add", out("a")), job("c", "echo", after=["b"])],
        {},
        422,
        "circular_workflow",
        "jobs",
    ),
    "itself": ([job("a", "add", out("a"))], {}, 422, "circular_workflow", "jobs"),
    "its own group": (
        [job("a", "echo", after=["g"])],
        {"groups": [{"as": "g", "members": ["a"]}]},
        422,
        "circular_workflow",
        "jobs",
    ),
    "a name twice": ([A, A], {}, 422, "duplicate_name", "jobs[1].as"),
    "a name of a job for a group": (
        [A, job("b", "echo", after=["a"])],
        {"groups": [{"as": "a", "members": ["b"]}]},
        422,
        "duplicate_name",
        "groups[0].as",
    ),
    "an unknown name": ([A, job("b", "echo", after=["x"])], {}, 422, "unknown_name", "jobs[1].after"),
    "the result of an unknown name": ([A, job("b", "add", out("x"))], {}, 422, "unknown_name", "jobs[1].args"),
    "an unknown member": (
        [A, job("b", "echo", after=["g"])],
        {"groups": [{"as": "g", "members": ["x"]}]},
        422,
        "unknown_name",
        "groups[0].members",
    ),
    "a member twice": (
        [A, job("b", "echo", after=["g"])],
        {"groups": [{"as": "g", "members": ["a", "a"]}]},
        422,
        "duplicate_name",
        "groups[0].members",
    ),
    "a group without followers": (
        [A],
        {"groups": [{"as": "g", "members": ["a"]}]},
        422,
        "invalid_value",
        "groups[0]",
    ),
    "a label": (
        [A, job("b", "echo", after=["g"])],
        {"groups": [{"as": "g", "members": ["a"], "label": "x" * 201}]},
        422,
        "invalid_value",
        "groups[0].label",
    ),
    "a name that is none": ([job("a b", "add", 1)], {}, 422, "invalid_value", "jobs[0].as"),
    "a name that is an id": ([job(GONE, "add", 1)], {}, 422, "invalid_value", "jobs[0].as"),
    "a job that is not stored": ([A, job("b", "add", out(GONE))], {}, 404, "not_found", None),
    "when without after": ([A, job("b", "echo", when="ended")], {}, 422, "invalid_value", "jobs[1].when"),
    "a result of what may fail": (
        [A, job("b", "add", out("a"), after=["a"], when="ended")],
        {},
        422,
        "invalid_value",
        "jobs[1].",
    ),
    "a result that meets no parameter": (
        [A, job("b", "add", 1, 2, out("a"))],
        {},
        422,
        "bad_arguments",
        "jobs[1].args",
    ),
    "an argument beside a result": ([A, job("b", "add", out("a"), "x")], {}, 422, "bad_arguments", "jobs[1].args.b"),
    "an unknown task": ([A, job("b", "nothing", out("a"))], {}, 422, "unknown_task", "jobs[1].task"),
    "an unknown option": ([A, job("b", "add", 1, colour="red")], {}, 422, "unknown_field", "jobs[1]"),
    "a key that others follow": (
        [job("a", "add", 1, key="k"), job("b", "add", out("a"))],
        {},
        422,
        "invalid_value",
        "jobs",
    ),
    "a number beyond 64 bits": (
        [A, job("b", "resize", out("a"), 1 << 70, queue="foreign")],
        {},
        422,
        "bad_arguments",
        "jobs[1].args",
    ),
    "a foreign result of what may fail": (
        [A, job("b", "resize", out("a"), queue="foreign", after=["a"], when="failed")],
        {},
        422,
        "invalid_value",
        "jobs[1].",
    ),
    "a full queue": (
        [A, *(job(f"s{n}", "echo", after=["a"], queue="short") for n in range(4))],
        {},
        429,
        "queue_full",
        None,
    ),
}


async def test_a_mistake_anywhere_stores_nothing(server: Running) -> None:
    for case, (jobs, more, status, code, path) in REFUSED.items():
        answer = await send(server.http, *jobs, **more)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem.get("path")) == (status, code, path), (case, problem)
        assert answer.headers["content-type"] == "application/problem+json"
        assert await stored(server) == 0, case
        assert await server.store.groups() == [], case


async def test_a_payload_that_is_too_large_stores_nothing(server: Running) -> None:
    large = "x" * (server.app.settings.max_payload + 1)
    for task in ("echo", "resize"):
        answer = await send(server.http, A, job("b", task, [out("a"), large], queue="foreign"))
        assert (answer.status_code, answer.json()["code"]) == (422, "payload_too_large"), answer.text
    assert await stored(server) == 0


async def test_too_many_jobs_store_nothing(server: Running) -> None:
    answer = await send(server.http, *({"as": f"n{n}", "task": "add"} for n in range(MOST_JOBS + 1)))
    assert (answer.status_code, answer.json()["code"]) == (422, "batch_too_large")
    assert await stored(server) == 0


async def test_a_chain_of_many_jobs(server: Running) -> None:
    links = [job("n0", "add", 0), *(job(f"n{n}", "add", out(f"n{n - 1}")) for n in range(1, 1500))]
    ids = (await accepted(server.http, *reversed(links)))["ids"]
    assert len(set(ids.values())) == 1500
    assert (await server.http.get("/v1/stats")).json()["blocked"] == 1499


# ── tokens ───────────────────────────────────────────────────────────────────


@pytest.fixture
async def bound(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with server.client(await server.token("enqueue", "read", tenant="b")) as client:
        yield client


async def test_the_scope_is_that_of_other_enqueue_calls(server: Running) -> None:
    async with server.client(await server.token("read", "work", "operate")) as client:
        answer = await send(client, A)
    assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")
    assert await stored(server) == 0


async def test_a_bound_token_enqueues_for_its_own_tenant(server: Running, bound: httpx2.AsyncClient) -> None:
    groups = [{"as": "g", "members": ["a"], "label": "mine"}]
    placed = await accepted(bound, A, job("b", "echo", out("g")), groups=groups)
    jobs = await server.store.get([JobId(UUID(id)) for id in placed["ids"].values()])
    assert {one.tenant for one in jobs if one is not None} == {"b"}
    [gate] = await server.store.groups()
    assert gate.tenant == "b"
    assert {decode_options(one.options).by is not None for one in jobs if one is not None} == {True}
    refused = await send(bound, job("a", "add", 1, tenant="c"))
    assert (refused.status_code, refused.json()["code"]) == (422, "tenant_not_allowed")


async def test_a_bound_token_cannot_follow_jobs_of_others(server: Running, bound: httpx2.AsyncClient) -> None:
    async with server.client(await server.token("enqueue")) as unbound:
        theirs = await accepted(
            unbound,
            job("a", "add", 1, tenant="acme"),
            job("b", "echo", after=["g"], tenant="acme"),
            groups=[{"as": "g", "members": ["a"]}],
        )
    before = await stored(server)
    for id in (theirs["ids"]["a"], theirs["groups"]["g"]):
        for wanted in (
            job("x", "echo", after=[id]),
            job("x", "add", out(id)),
            job("x", "resize", out(id), queue="foreign"),
        ):
            answer = await send(bound, wanted)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
    assert await stored(server) == before


async def test_the_same_key_of_two_tenants_makes_two_workflows(server: Running, bound: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": str(new_batch())}
    first = await accepted(bound, A, headers=headers)
    async with server.client(await server.token("enqueue", tenant="c")) as other:
        second = await accepted(other, A, headers=headers)
    assert first["ids"] != second["ids"]
    assert await stored(server) == 2
