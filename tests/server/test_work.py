"""Workers in any language: claim, heartbeat, settle, progress and log over HTTP."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import msgspec
import pytest
from starlette.requests import Request

from headrace import Headrace
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.operate import tokens
from headrace.server import ServerSettings, waiting_claims
from headrace.server.leases import LeaseSigner
from headrace.store.http.store import HttpStore
from headrace.task.codec import JobOptions, encode_options
from server.running import Calls, Running, running
from server.test_work_waiting import asleep

TTL = timedelta(seconds=15)


async def put(
    server: Running,
    task: str = "resize",
    *args: Any,
    queue: str = "foreign",
    tenant: str = "",
    count: int = 1,
    options: JobOptions | None = None,
) -> list[JobId]:
    job = NewJob(
        task,
        msgspec.msgpack.encode((list(args), {})),
        Lane(queue=queue, tenant=tenant),
        options=encode_options(options) if options else None,
    )
    batch = Batch(new_batch(), [job] * count)
    await server.store.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


async def look(server: Running, id: JobId | str) -> Job:
    [job] = await server.store.get([JobId(UUID(str(id)))])
    assert job is not None
    return job


async def post(http: httpx2.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    reply = await http.post(f"/v1/{path}", json=body)
    assert reply.status_code == status, reply.text
    if status >= 400:
        assert reply.headers["content-type"] == "application/problem+json"
    return reply.json() if reply.content else None


async def claim(http: httpx2.AsyncClient, *queues: str, **more: Any) -> Any:
    return await post(http, "claim", queues=list(queues or ("foreign",)), **more)


def ended(job: Any, outcome: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"position": job["position"], "id": job["id"], "outcome": outcome, **more}


async def settle(
    http: httpx2.AsyncClient, lease: Any, outcome: str = "succeeded", status: int = 200, **more: Any
) -> Any:
    settlements = [ended(job, outcome, **more) for job in lease["jobs"]]
    return await post(http, "settle", status, lease=lease["lease"], settlements=settlements)


# ── claim and settle ─────────────────────────────────────────────────────────


async def test_a_job_from_claim_to_done(server: Running) -> None:
    [id] = await put(server, "resize", 7, "large")
    lease = await claim(server.http, worker="node:1", tasks=["resize"])
    [job] = lease["jobs"]
    assert job["id"] == str(id)
    assert (job["task"], job["args"], job["kwargs"], job["attempt"]) == ("resize", [7, "large"], {}, 1)
    assert (job["position"], job["queue"], job["timeout"], lease["expires_in"]) == (0, "foreign", None, 60)
    assert (await look(server, id)).state is JobState.RUNNING
    [worker] = await server.store.workers()
    assert (worker.name, worker.queues, worker.tasks) == ("node:1", ("foreign",), ("resize",))
    answer = await settle(server.http, lease, result={"width": 100})
    assert answer == {"settlements": [{"position": 0, "id": str(id), "state": "done"}]}
    done = await look(server, id)
    assert done.state is JobState.DONE
    assert msgspec.msgpack.decode(done.result or b"") == {"width": 100}


async def test_a_claimed_job_has_the_trace_of_its_producer(server: Running) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await put(server, options=JobOptions(trace=trace))
    await put(server)
    lease = await claim(server.http, limit=2)
    assert [job["trace"] for job in lease["jobs"]] == [trace, None]


async def test_nothing_to_claim_is_204(server: Running) -> None:
    assert await post(server.http, "claim", 204, queues=["foreign"]) is None


async def test_many_jobs_under_one_lease(server: Running) -> None:
    ids = await put(server, count=5)
    lease = await claim(server.http, limit=4)
    assert [job["id"] for job in lease["jobs"]] == [str(id) for id in ids[:4]]
    first, second, third, fourth = lease["jobs"]
    answer = await post(
        server.http,
        "settle",
        lease=lease["lease"],
        settlements=[
            ended(first),
            ended(second, "failed", kind="TypeError", message="no", traceback="at line 1"),
            ended(third, "snoozed", after="5m", note="later"),
            ended(fourth, "released"),
        ],
    )
    assert [each["state"] for each in answer["settlements"]] == ["done", "scheduled", "scheduled", "ready"]
    jobs = [await look(server, id) for id in ids]
    assert [job.state for job in jobs] == ["done", "scheduled", "scheduled", "ready", "ready"]
    assert (jobs[1].failures, jobs[1].history[0].kind, jobs[1].history[0].traceback) == (1, "TypeError", "at line 1")
    assert (jobs[2].failures, jobs[2].note) == (0, "later")


async def test_the_retry_rule_is_the_task_s_own(server: Running) -> None:
    """`fail` is declared with one attempt; a task of others gets the usual five."""
    [own] = await put(server, "fail", queue="broken")
    [other] = await put(server, "unheard-of", queue="broken")
    lease = await claim(server.http, "broken", limit=2)
    answer = await settle(server.http, lease, "failed", message="no")
    assert [each["state"] for each in answer["settlements"]] == ["dead", "scheduled"]
    assert (await look(server, own)).note == "max_attempts"
    assert (await look(server, other)).failures == 1


async def test_five_failures_and_it_is_dead(server: Running) -> None:
    [id] = await put(server)
    states: list[str] = []
    for attempt in range(1, 6):
        lease = await claim(server.http)
        assert lease["jobs"][0]["attempt"] == attempt
        answer = await settle(server.http, lease, "failed", retry_after=0)
        states.append(answer["settlements"][0]["state"])
    assert states == ["ready"] * 4 + ["dead"]
    assert len((await look(server, id)).history) == 5


async def test_final_failures_cancels_and_exact_delays(server: Running) -> None:
    ids = await put(server, count=3)
    lease = await claim(server.http, limit=3)
    first, second, third = lease["jobs"]
    settlements = [
        ended(first, "failed", final=True),
        ended(second, "cancelled", reason="no longer needed"),
        ended(third, "failed", retry_after="2h"),
    ]
    await post(server.http, "settle", lease=lease["lease"], settlements=settlements)
    jobs = [await look(server, id) for id in ids]
    assert [(job.state, job.note) for job in jobs[:2]] == [("dead", "final"), ("cancelled", "no longer needed")]
    assert jobs[2].run_at is not None
    assert timedelta(minutes=119) < jobs[2].run_at - await server.store.now() <= timedelta(hours=2)


async def test_a_job_s_own_options_count(server: Running) -> None:
    [id] = await put(server, options=JobOptions(max_attempts=1, timeout=5))
    lease = await claim(server.http)
    assert lease["jobs"][0]["timeout"] == 5
    await settle(server.http, lease, "failed")
    assert (await look(server, id)).state is JobState.DEAD


async def test_what_is_too_late_is_not_handed_out(server: Running) -> None:
    [late] = await put(server, options=JobOptions(expires=0))
    [good] = await put(server)
    lease = await claim(server.http, limit=10)
    assert [job["id"] for job in lease["jobs"]] == [str(good)]
    assert lease["jobs"][0]["position"] == 1
    assert (await look(server, late)).note == "expired"
    await settle(server.http, lease)
    [late] = await put(server, options=JobOptions(expires=0))
    assert await post(server.http, "claim", 204, queues=["foreign"]) is None
    assert (await look(server, late)).state is JobState.CANCELLED


async def test_secrets_of_a_known_task_stay_out_of_its_failures(server: Running) -> None:
    [id] = await put(server, "login", "ada", "hunter2", queue="default")
    lease = await claim(server.http, "default")
    assert lease["jobs"][0]["args"] == ["ada", "hunter2"]
    await settle(server.http, lease, "failed", message="hunter2 is wrong", traceback="login('hunter2')")
    [failure] = (await look(server, id)).history
    assert "hunter2" not in failure.message + failure.traceback


async def test_secrets_of_an_unknown_task_stay_out_of_its_failures(server: Running) -> None:
    [id] = await put(server, "elsewhere", "ada", "hunter2", options=JobOptions(redact=("code",), names=("", "code")))
    lease = await claim(server.http)
    await settle(server.http, lease, "failed", message="hunter2 is wrong", traceback="login('hunter2')")
    [failure] = (await look(server, id)).history
    assert "hunter2" not in failure.message + failure.traceback


async def test_the_log_of_the_server_has_every_step(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.job")
    body = {"task": "login", "kwargs": {"user": "eve", "password": "sesame"}}
    ids = (await post(server.http, "jobs/batch", 201, jobs=[body] * 3))["ids"]
    lease = await claim(server.http, "default", limit=3, worker="go-1")
    first, second, third = lease["jobs"]
    settlements = [
        ended(first, result=1),
        ended(second, "failed", kind="Timeout", message="after sesame"),
        ended(third, "failed", kind="Refused", final=True),
    ]
    await post(server.http, "settle", lease=lease["lease"], settlements=settlements)
    steps: dict[str, list[str]] = {}
    for record in caplog.records:
        steps.setdefault(vars(record)["event"], []).append(vars(record)["job_id"])
    assert steps == {
        "job.enqueued": ids,
        "job.claimed": ids,
        "attempt.ended": ids[:1],
        "attempt.failed": ids[1:2],
        "job.dead": ids[2:],
    }
    assert {vars(record)["worker"] for record in caplog.records if vars(record)["event"] == "job.claimed"} == {"go-1"}
    assert "sesame" not in caplog.text


async def test_settled_through_a_server_that_did_not_claim_it(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    server.service.leases.forget(server.service.leases.signer.read(lease["lease"], _local(server)))
    answer = await settle(server.http, lease, "failed", message="x")
    assert answer["settlements"] == [{"position": 0, "id": str(id), "state": "scheduled"}]
    assert (await look(server, id)).failures == 1


def _local(server: Running) -> Any:
    from headrace.server.auth import LOCAL

    return LOCAL


async def test_whoever_waits_for_the_result_is_told(server: Running) -> None:
    [id] = await put(server)
    waiting_claims = asyncio.create_task(server.service.hub.finished(id, 60))
    lease = await claim(server.http)
    await settle(server.http, lease, result=1)
    job = await waiting_claims
    assert job is not None
    assert job.state is JobState.DONE


# ── heartbeat, stops and lost leases ─────────────────────────────────────────


async def lose(server: Running) -> None:
    """Let another worker take over all present leases."""
    for job in (await server.store.find(_everything(), limit=100)).jobs:
        if job.worker is not None:
            await server.store.abandon(job.worker, "gone")  # type: ignore[arg-type]  # a worker's id
    await server.store.reap(new_worker_id(), TTL, 100)


def _everything() -> Any:
    from headrace.model.records import Filter

    return Filter(states=frozenset({JobState.RUNNING}))


async def test_a_heartbeat_renews_and_tells_what_to_stop(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http, lease="30s")
    assert await post(server.http, "heartbeat", leases=[lease["lease"]]) == {"lost": [], "stops": []}
    await server.store.cancel([id], "enough")
    answer = await post(server.http, "heartbeat", leases=[lease["lease"]], lease=120)
    assert answer == {"lost": [], "stops": [{"lease": lease["lease"], "position": 0}]}
    await settle(server.http, lease, "cancelled")
    job = await look(server, id)
    assert (job.state, job.note) == (JobState.CANCELLED, "enough")


async def test_s35_a_lost_lease_is_409(quiet: Running) -> None:
    server = quiet
    [id] = await put(server)
    lease = await claim(server.http)
    await lose(server)
    before = await look(server, id)
    for _ in range(2):
        problem = await settle(server.http, lease, status=409)
        assert problem["code"] == "lease_lost"
    assert (await post(server.http, "progress", 409, lease=lease["lease"], position=0, progress=1))[
        "code"
    ] == "lease_lost"
    assert (await post(server.http, "log", 409, lease=lease["lease"], position=0, lines=["x"]))["code"] == "lease_lost"
    assert await post(server.http, "heartbeat", leases=[lease["lease"]]) == {"lost": [lease["lease"]], "stops": []}
    assert await look(server, id) == before


async def test_settling_twice_is_409_and_changes_nothing(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    await settle(server.http, lease, result=1)
    before = await look(server, id)
    assert (await settle(server.http, lease, "failed", status=409))["code"] == "lease_lost"
    assert await look(server, id) == before


async def test_answers_are_per_job(server: Running) -> None:
    await put(server, count=2)
    lease = await claim(server.http, limit=2)
    stranger = {"position": 1, "id": str(uuid4()), "outcome": "succeeded"}
    answer = await post(server.http, "settle", lease=lease["lease"], settlements=[ended(lease["jobs"][0]), stranger])
    assert [each["state"] for each in answer["settlements"]] == ["done", "lost"]
    assert (await look(server, lease["jobs"][1]["id"])).state is JobState.RUNNING


async def test_progress_and_log(server: Running) -> None:
    [id] = await put(server)
    lease = (await claim(server.http))["lease"]
    await post(server.http, "progress", 204, lease=lease, position=0, progress=0.4, note="half way")
    await post(server.http, "progress", 204, lease=lease, position=0, progress=0.5)
    await post(server.http, "log", 204, lease=lease, position=0, lines=["one", "two"])
    job = await look(server, id)
    assert (job.progress, job.doing, [line.text for line in job.log]) == (0.5, "half way", ["one", "two"])


# ── long polls ───────────────────────────────────────────────────────────────


async def test_a_long_poll_answers_when_a_job_comes(server: Running) -> None:
    arrived = Calls(server.service.leases.room, "until_found")
    polls = [asyncio.create_task(claim(server.http, wait="30s")) for _ in range(3)]
    await arrived(3)
    assert server.service.leases.room.listening == 1
    ids = await put(server, count=3)
    leases = [await poll for poll in polls]
    assert {job["id"] for lease in leases for job in lease["jobs"]} == {str(id) for id in ids}
    assert server.service.leases.room.waiting == 0


async def test_a_long_poll_ends_with_its_time(server: Running) -> None:
    assert await post(server.http, "claim", 204, queues=["foreign"], wait=0.05) is None


async def test_who_hangs_up_gets_no_job(server: Running) -> None:
    arrived = Calls(server.service.leases.room, "until_found")
    async with server.client() as http:
        poll = asyncio.create_task(claim(http, wait=30))
        await arrived()
        poll.cancel()
        await asyncio.wait([poll])
    [id] = await put(server)
    lease = await claim(server.http, wait=30)
    assert lease["jobs"][0]["id"] == str(id)
    assert (await look(server, id)).attempt == 1


async def test_who_hangs_up_while_jobs_are_claimed_gives_them_back(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = await put(server)
    there = iter([False, True])

    async def gone(_: Request) -> bool:
        return next(there)

    with monkeypatch.context() as patch:
        patch.setattr(Request, "is_disconnected", gone)
        assert await post(server.http, "claim", 204, queues=["foreign"]) is None
    job = await look(server, id)
    assert (job.state, job.attempt, job.failures, job.crashes) == (JobState.READY, 1, 0, 0)


async def test_who_hung_up_while_asleep_does_not_take_the_turn_of_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one hint that comes must reach the one that is still there."""
    monkeypatch.setattr(waiting_claims, "POLL", 600.0)
    room = server.service.leases.room
    gone: list[asyncio.Task[httpx2.Response]] = []
    for count in range(1, 4):
        gone.append(asyncio.create_task(server.http.post("/v1/claim", json={"queues": ["foreign"], "wait": 30})))
        await asleep(room, count)
    there = asyncio.create_task(claim(server.http, wait=30))
    await asleep(room, 4)
    connections = server.server.server_state.connections
    for each in gone:
        each.cancel()
    await asyncio.wait(gone)
    async with asyncio.timeout(60):
        while len(connections) > 1:  # noqa: ASYNC110  # the server hears of it in this very loop
            await asyncio.sleep(0)
    [id] = await put(server)
    assert (await there)["jobs"][0]["id"] == str(id)
    assert (await look(server, id)).attempt == 1


async def test_jobs_that_came_too_late_do_not_hide_those_behind(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_claims, "POLL", 600.0)
    past = await server.store.now() - timedelta(seconds=1)
    late = await put(server, count=2, options=JobOptions(expires=past))
    [id] = await put(server)
    assert (await claim(server.http, wait=30))["jobs"][0]["id"] == str(id)
    assert {(await look(server, each)).state for each in late} == {JobState.CANCELLED}


async def test_delayed_jobs_come_without_a_python_worker(server: Running) -> None:
    """The server tidies: what is due is promoted, what was orphaned comes back."""
    job = NewJob("t", msgspec.msgpack.encode(([], {})), Lane(queue="foreign"), timedelta(milliseconds=50))
    await server.store.enqueue(Batch(new_batch(), [job]))
    lease = await claim(server.http, wait=30)
    [claimed] = lease["jobs"]
    worker = (await look(server, claimed["id"])).worker
    assert worker is not None
    await server.store.abandon(worker, "killed")  # type: ignore[arg-type]  # a worker's id
    again = await claim(server.http, wait=30)
    assert (again["jobs"][0]["id"], again["jobs"][0]["attempt"], again["suspect"]) == (claimed["id"], 2, True)


async def test_a_server_that_stops_sends_its_polls_home(app: Headrace) -> None:
    async with running(app) as server:
        arrived = Calls(server.service.leases.room, "until_found")
        poll = asyncio.create_task(post(server.http, "claim", 204, queues=["foreign"], wait=30))
        await arrived()
        server.frame.stop()
        async with asyncio.timeout(25):  # it would wait for longer
            assert await poll is None


# ── whose lease it is ────────────────────────────────────────────────────────


@pytest.fixture
async def quiet(app: Headrace) -> Any:
    """A server that does not tidy, for tests that do it themselves."""
    async with running(app, ServerSettings(port=0, tidy=False)) as server:
        yield server


async def worker_of(server: Running, name: str, **bound: Any) -> httpx2.AsyncClient:
    text, _ = await tokens.create(server.store, name, scopes=["work"], **bound)
    server.service.auth._asked = float("-inf")
    return server.client(text)


async def test_a_bound_worker_claims_its_tenant_only(quiet: Running) -> None:
    [theirs] = await put(quiet, tenant="t2")
    [own] = await put(quiet, tenant="t1")
    async with await worker_of(quiet, "one", tenant="t1") as one:
        lease = await claim(one, limit=10)
        assert [job["id"] for job in lease["jobs"]] == [str(own)]
        assert await post(one, "claim", 204, queues=["foreign"]) is None
        assert (await look(quiet, theirs)).state is JobState.READY
        assert (await post(one, "claim", 422, queues=["foreign"], tenant="t2"))["code"] == "unknown_field"


async def test_a_bound_worker_claims_its_queues_only(quiet: Running) -> None:
    await put(quiet, queue="b")
    async with await worker_of(quiet, "one", queues=["a"]) as one:
        assert (await post(one, "claim", 404, queues=["b"]))["code"] == "not_found"
        assert (await post(one, "claim", 404, queues=["a", "b"]))["code"] == "not_found"
        assert await post(one, "claim", 204, queues=["a"]) is None


@pytest.mark.parametrize("other", [{"tenant": "t1"}, {}, {"queues": ["foreign"]}])
async def test_somebody_else_s_lease_is_404_and_changes_nothing(quiet: Running, other: dict[str, Any]) -> None:
    [id] = await put(quiet, tenant="t2")
    async with await worker_of(quiet, "two", tenant="t2") as two, await worker_of(quiet, "other", **other) as thief:
        lease = await claim(two)
        before = await look(quiet, id)
        wire = lease["lease"]
        assert (await settle(thief, lease, status=404))["code"] == "not_found"
        assert (await post(thief, "heartbeat", 404, leases=[wire], lease="1h"))["code"] == "not_found"
        assert (await post(thief, "progress", 404, lease=wire, position=0, progress=1))["code"] == "not_found"
        assert (await post(thief, "log", 404, lease=wire, position=0, lines=["x"]))["code"] == "not_found"
        assert await look(quiet, id) == before
        await settle(two, lease)
    assert (await look(quiet, id)).state is JobState.DONE


async def test_forged_leases_are_404(quiet: Running) -> None:
    [id] = await put(quiet)
    lease = await claim(quiet.http)
    wire: str = lease["lease"]
    before = await look(quiet, id)
    token, _, sign = wire.partition(".")
    forged = [
        "",
        "x",
        token,
        f"{token}.",
        f"{token}.{'0' * 64}",
        f"{uuid4().hex}.{sign}",
        wire.upper(),
        f"{wire} ",
        wire[:-1] + ("0" if wire[-1] != "0" else "1"),
        f"{token}.{sign}{sign}",
        "é" * 97,
        "\x00" * 97,
        f"{uuid4().hex}.{'é' * 64}",
    ]
    for text in forged:
        problem = await settle(quiet.http, {**lease, "lease": text}, status=404)
        assert problem["code"] == "not_found", text
        assert (await post(quiet.http, "heartbeat", 404, leases=[text]))["code"] == "not_found"
    assert await look(quiet, id) == before


async def test_all_servers_of_a_store_share_one_secret(server: Running) -> None:
    signer = await asyncio.gather(*[LeaseSigner.load(server.store) for _ in range(5)])
    assert len({each._secret for each in signer}) == 1
    assert set(await server.store.records("secret")) == {"lease", "session"}


# ── bad input ────────────────────────────────────────────────────────────────

BAD_CLAIMS: list[dict[str, Any]] = [
    {},
    {"queues": []},
    {"queues": ["A b"]},
    {"queues": "foreign"},
    {"queues": ["foreign"] * 101},
    {"queues": ["foreign"], "limit": 0},
    {"queues": ["foreign"], "limit": 1001},
    {"queues": ["foreign"], "limit": 1e9},
    {"queues": ["foreign"], "wait": 31},
    {"queues": ["foreign"], "wait": -1},
    {"queues": ["foreign"], "wait": "soon"},
    {"queues": ["foreign"], "wait": 1e300},
    {"queues": ["foreign"], "lease": 0},
    {"queues": ["foreign"], "lease": "2h"},
    {"queues": ["foreign"], "tasks": ["no such name!"]},
    {"queues": ["foreign"], "worker": "x" * 129},
    {"queues": ["foreign"], "token": "x"},
]


@pytest.mark.parametrize("body", BAD_CLAIMS, ids=lambda body: str(body)[:60])
async def test_bad_claims(server: Running, body: dict[str, Any]) -> None:
    await put(server)
    await post(server.http, "claim", 422, **body)
    assert [job.state for job in (await server.store.find(_everything())).jobs] == []


BAD_OUTCOMES: list[dict[str, Any]] = [
    {"outcome": "done"},
    {"outcome": "succeeded", "state": "done"},
    {"outcome": "failed", "retry_after": -1},
    {"outcome": "failed", "retry_after": 1e300},
    {"outcome": "failed", "attempt": 9},
    {"outcome": "failed", "kind": ""},
    {"outcome": "snoozed"},
    {"outcome": "snoozed", "after": "never"},
    {"outcome": "released", "suspect": True},
    {},
]


@pytest.mark.parametrize("outcome", BAD_OUTCOMES, ids=lambda body: str(body)[:60])
async def test_bad_outcomes(server: Running, outcome: dict[str, Any]) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    settlement = {"position": 0, "id": str(id), **outcome}
    await post(server.http, "settle", 422, lease=lease["lease"], settlements=[settlement])
    assert (await look(server, id)).state is JobState.RUNNING


def hours(first: int, last: int) -> str:
    """A span of so many hours from now."""
    return "-".join(f"{datetime.now(UTC) + timedelta(hours=each):%H:00}" for each in (first, last))


async def test_a_closed_queue_has_nothing_to_claim() -> None:
    """At both doors for workers: /v1/claim, and the store over HTTP."""
    app = Headrace("memory://")
    app.queue("later", open=hours(6, 8), foreign=True)
    app.queue("now", open=hours(-6, 6), foreign=True)
    async with running(app) as server:
        remote = HttpStore(server.url)
        await remote.open()
        [waiting] = await put(server, queue="later")
        assert await post(server.http, "claim", 204, queues=["later"]) is None
        asked = Ask(new_worker_id(), ("later",), 10, TTL, new_token())
        assert await remote.claim(asked) is None
        await remote.close()
        assert (await server.http.get(f"/v1/jobs/{waiting}/explain")).json()["reason"] == "closed"
        await put(server, queue="now")
        assert (await claim(server.http, "later", "now"))["jobs"][0]["queue"] == "now"
