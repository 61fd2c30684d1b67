"""The producer and the key of a job: stored with the job, and shown to callers that may see them."""

from __future__ import annotations

import logging

import pytest

from headrace import Headrace
from headrace.model.job import Batch, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.operate import shown as job_view
from headrace.store.http.store import HttpStore
from headrace.task.codec import marked
from server.running import Running, make_app, running


async def test_a_job_shows_its_token_and_its_key(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace.job.enqueued")
    reader = await server.token("read", name="watcher")
    producer = await server.token("enqueue", name="billing-api")
    async with server.client(producer) as one, server.client(reader) as two:
        for task, queue in (("add", "default"), ("elsewhere", "foreign")):
            asked = {"task": task, "queue": queue, "args": [1], "key": f"order-7-{task}"}
            id = (await one.post("/v1/jobs", json=asked)).json()["id"]
            shown = (await two.get(f"/v1/jobs/{id}")).json()
            assert (shown["enqueued_by"], shown["key"]) == ("billing-api", f"order-7-{task}")
            assert shown["options"] == {}
            assert [each["detail"] for each in shown["timeline"] if each["event"] == "enqueued"] == ["by billing-api"]
        listed = (await two.get("/v1/jobs")).json()["items"]
        assert {each["enqueued_by"] for each in listed} == {"billing-api"}
    lines = [vars(record) for record in caplog.records if getattr(record, "event", "") == "job.enqueued"]
    assert [(line["by"], line["key"]) for line in lines] == [
        ("billing-api", f"order-7-{task}") for task in ("add", "elsewhere")
    ]


async def test_a_tenant_sees_its_own_key_and_no_names_of_others(server: Running) -> None:
    own = await server.token("enqueue", "read", name="own-token", tenant="t1")
    other = await server.token("enqueue", name="operators-token")
    async with server.client(own) as one, server.client(other) as two:
        mine = (await one.post("/v1/jobs", json={"task": "echo", "key": "k"})).json()["id"]
        theirs = (await two.post("/v1/jobs", json={"task": "echo", "tenant": "t1"})).json()["id"]
        shown = [(await one.get(f"/v1/jobs/{id}")).json() for id in (mine, theirs)]
    assert [(each["enqueued_by"], each["key"]) for each in shown] == [("own-token", "k"), (None, None)]
    assert "operators-token" not in str(shown)


async def test_a_remote_producer_cannot_say_who_it_is(server: Running) -> None:
    token = await server.token("enqueue", "read", name="truth")
    batch = Batch(new_batch(), [NewJob("t", b"\x92\x90\x80", Lane(), options=marked(None, by="somebody-else"))])
    store = HttpStore(server.url.replace("//", f"//{token}@"))
    await store.open()
    await store.enqueue(batch)
    await store.close()
    shown = (
        await server.http.get(f"/v1/jobs/{job_id(batch.id, 0)}", headers={"Authorization": f"Bearer {token}"})
    ).json()
    assert shown["enqueued_by"] == "truth"


async def test_without_tokens_there_is_no_name(store_url: str) -> None:
    app: Headrace = make_app(store_url)
    async with running(app) as server:
        id = (await server.http.post("/v1/jobs", json={"task": "echo"})).json()["id"]
        assert (await server.http.get(f"/v1/jobs/{id}")).json()["enqueued_by"] is None


async def test_in_python_the_setting_says_it() -> None:
    app = Headrace("memory://", producer="billing-api")

    @app.task(name="t")
    async def t() -> None: ...

    made = [await t.aenqueue(), await t.using(key="k", timeout="5s").aenqueue()]
    jobs = [job for handle in made if (job := await app.aget(handle)) is not None]
    assert [(job_view.producer(job), job_view.key(job)) for job in jobs] == [
        ("billing-api", None),
        ("billing-api", "k"),
    ]
    assert [job_view.options(job) for job in jobs] == [{}, {"timeout": 5.0}]
    await app.aclose()
