"""Webhooks over HTTP: URLs that are refused, and ends that workers in other languages settle."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from headrace import Headrace, webhook
from headrace.errors import ConfigError, Unsupported
from headrace.model.job import JobState, NewJob
from headrace.model.lane import Lane
from headrace.model.outcome import Finish
from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.store import connect
from headrace.webhooks.deliver import QUEUE, TASK, DeliveryMaker, _signature, batch_of
from headrace.worker import Worker
from server.running import Running, running
from webhooks.receiver import receiver

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()

LITERAL = [
    "http://127.0.0.1",
    "http://[::1]",
    "http://169.254.169.254/latest/meta-data",
    "http://10.0.0.1",
    "http://0.0.0.0",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:7f00:1]",
]
STRANGE = ["file:///etc/passwd", "gopher://h/", "ftp://h/", "http://u:p@example.com/", "http://example.com:22/", ""]


@pytest.fixture
def store_name() -> str:
    return "memory"


@pytest.mark.parametrize("url", LITERAL + STRANGE)
async def test_s55_s59_urls_that_are_refused(server: Running, url: str):
    for job in ({"task": "add", "args": [1]}, {"task": "theirs", "queue": "foreign"}):
        answer = await server.http.post("/v1/jobs", json={**job, "webhook": url})
        assert answer.status_code == 422
        assert (answer.json()["code"], answer.json()["path"]) == ("unsafe_callback_url", "webhook")
    batch = {"jobs": [{"task": "add", "args": [1]}, {"task": "add", "args": [1], "webhook": url}]}
    answer = await server.http.post("/v1/jobs/batch", json=batch)
    assert answer.json()["code"] == "unsafe_callback_url"
    assert (await server.store.stats()).queues == []


@pytest.mark.parametrize("mixed", [True, False])
async def test_nobody_has_others_jobs_told_to_a_url_of_theirs(server: Running, mixed: bool):
    await server.http.post("/v1/jobs", json={"task": "add", "args": [1], "tenant": "t2"})
    claimed = (await server.http.post("/v1/claim", json={"queues": ["default"]})).json()
    theirs = claimed["jobs"][0]["id"]
    text = await server.token("enqueue", tenant="t1")
    arguments = ("https://example.com/mine", "done", theirs, 1, {})
    forged = NewJob(TASK, _signature.encode(arguments, {}), Lane(QUEUE, 0, "t1"))
    elsewhere = NewJob(TASK, _signature.encode(arguments, {}), Lane("default", 0, "t1"))
    harmless = NewJob("add", b"\x92\x91\x01\x80", Lane("default", 0, "t1"))
    store = connect(f"http://{text}@127.0.0.1:{server.port}")
    await store.open()
    try:
        for batch in ([forged, harmless], [elsewhere], [elsewhere, forged]) if mixed else ():
            with pytest.raises(ConfigError, match="headrace's own"):
                await store.enqueue(batch_of(batch))
        if not mixed:
            await store.enqueue(batch_of([forged]))  # made anew from what is true and theirs: so nothing is
        assert {each.queue for each in (await server.store.stats()).queues} == {"default"}
        [figures] = (await server.store.stats()).queues
        assert figures.ready == 0
    finally:
        await store.close()


async def test_ends_that_another_language_settles(store_url: str):
    app = Headrace(store_url, webhook_secret=SECRET, webhook_allow=["127.0.0.1"], poll="50ms", drain="2s")
    app.queue("foreign", foreign=True)

    @app.task(name="add")
    async def add(a: int) -> int:
        return a

    async with receiver() as there, running(app) as server:
        app.webhook(there.url("/dead"), on="dead", queue="foreign")
        for more in ({"webhook": there.url("/own")}, {}):
            made = await server.http.post("/v1/jobs", json={"task": "theirs", "queue": "foreign", **more})
            assert made.status_code == 201, made.text
        claimed = (await server.http.post("/v1/claim", json={"queues": ["foreign"], "limit": 2, "worker": "w"})).json()
        first, second = claimed["jobs"]
        settlements: list[dict[str, Any]] = [
            {"position": first["position"], "id": first["id"], "outcome": "succeeded", "result": {"n": 7}},
            {
                "position": second["position"],
                "id": second["id"],
                "outcome": "failed",
                "kind": "Oops",
                "message": "no",
                "final": True,
            },
        ]
        settled = await server.http.post("/v1/settle", json={"lease": claimed["lease"], "settlements": settlements})
        assert settled.status_code == 200, settled.text
        async with app.worker():
            await there.gets(2)
    told = {got.line.split()[1]: got for got in there.got}
    assert webhook.verify(SECRET, told["/own"].headers, told["/own"].body) == f"{first['id']}.1"
    assert told["/own"].json["data"]["result"] == {"n": 7}
    assert told["/dead"].json["data"]["failure"]["kind"] == "Oops"


async def test_a_python_worker_over_http_tells_with_a_token_that_may_only_work(store_url: str):
    app = Headrace(store_url, webhook_secret=SECRET, webhook_allow=["127.0.0.1"], poll="50ms", drain="2s")

    @app.task(name="add", queue="sums")
    async def add(a: int) -> int:
        return a + 1

    async with receiver() as there, running(app) as server:
        own = await add.using(webhook=there.url("/own"), tenant="acme").aenqueue(1)
        text, _ = await tokens.create(server.store, "worker", scopes=[Scope.WORK], queues=["sums"], tenant="acme")
        far = app.settings.replace(url=f"http://{text}@127.0.0.1:{server.port}")
        store = connect(far.url)
        await store.open()
        try:
            async with Worker(app.tasks, store, far, duties=app.duties) as worker:
                assert worker.queues == ("sums",)
                await own.aresult(timeout=60)
            forged = DeliveryMaker(()).news(await own.astatus(), Finish(JobState.DEAD, note="a lie"))
            assert forged
            await store.enqueue(batch_of(forged))  # of a job that this worker does not hold: nothing comes of it
            with pytest.raises(Unsupported, match="enqueue"):
                await store.enqueue(batch_of([add.job(1).job]))
        finally:
            await store.close()
        async with app.worker():
            [got] = await there.gets(1)
    assert got.json["data"].items() >= {"id": str(own.id), "state": "done", "result": 2, "tenant": "acme"}.items()
    assert webhook.verify(SECRET, got.headers, got.body) == f"{own.id}.1"
