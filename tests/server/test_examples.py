"""The examples in other languages, run against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from headrace.model.job import JobId, JobState
from headrace.operate import tokens
from server.running import Running

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def store_name() -> str:
    return "memory"


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is needed for this test"
    return found


async def start(program: str, *arguments: str, token: str) -> Process:
    environment = {**os.environ, "HEADRACE_TOKEN": token}
    return await asyncio.create_subprocess_exec(
        program, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment
    )


@asynccontextmanager
async def js_worker(server: Running, token: str, program: str = "worker.mjs") -> AsyncGenerator[Process]:
    worker = await start(tool("node"), str(EXAMPLES / program), server.url, "foreign", token=token)
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGTERM)
        await worker.communicate()
    assert worker.returncode == 0


async def line(worker: Process) -> str:
    assert worker.stdout is not None
    async with asyncio.timeout(60):
        return (await worker.stdout.readline()).decode().strip()


async def test_a_producer_in_shell_and_a_worker_in_javascript(server: Running) -> None:
    work, _ = await tokens.create(server.store, "worker", scopes=["work"], queues=["foreign"])
    enqueue, _ = await tokens.create(server.store, "producer", scopes=["enqueue", "read"])
    async with js_worker(server, work) as worker:
        assert await line(worker) == f"working on foreign at {server.url}"
        producer = await start(
            str(EXAMPLES / "produce.sh"), server.url, "foreign", "image.resize", "[640, 480]", token=enqueue
        )
        output, _ = await asyncio.wait_for(producer.communicate(), 60)
        assert producer.returncode == 0, output
        said, answer = output.decode().strip().split("\n")
        id = JobId(UUID(said.removeprefix("job ")))
        assert json.loads(answer)["result"] == {"pixels": 307_200}
        assert await line(worker) == f"{id} done"
        [job] = await server.store.get([id])
        assert job is not None
        assert (job.state, job.progress, job.doing) == (JobState.DONE, 0.5, "resizing")

        async with server.client(enqueue) as http:
            made = await http.post("/v1/jobs", json={"task": "text.count", "args": [3], "queue": "foreign"})
        id = JobId(UUID(made.json()["id"]))
        assert await line(worker) == f"{id} scheduled"
        [job] = await server.store.get([id])
        assert job is not None
        assert job.history[0].kind == "TypeError"
        assert "worker.mjs" in job.history[0].traceback


async def test_a_worker_in_javascript_with_steps_and_an_event(server: Running) -> None:
    work, _ = await tokens.create(server.store, "worker", scopes=["work"], queues=["foreign"])
    enqueue, _ = await tokens.create(server.store, "producer", scopes=["enqueue", "read"])
    payouts = [
        {"as": "pay", "task": "payout", "queue": "foreign", "args": [42], "tenant": "acme"},
        {"as": "second", "task": "payout", "queue": "foreign", "args": [{"$out": "pay"}], "tenant": "acme"},
    ]
    async with js_worker(server, work, "payout.mjs") as worker, server.client(enqueue) as http:
        assert await line(worker) == f"working on foreign at {server.url}"
        ids = (await http.post("/v1/workflows", json={"jobs": payouts})).json()["ids"]
        assert await line(worker) == "please decide about 42"
        assert await line(worker) == f"{ids['pay']} blocked"
        answer = {"value": {"ok": True, "by": "ann"}, "tenant": "acme"}
        assert (await http.post("/v1/events/payout.approved/42", json=answer)).status_code == 201
        # It is not asked again: the first attempt has finished that step.
        assert await line(worker) == f"{ids['pay']} done"
        result = (await http.get(f"/v1/jobs/{ids['pay']}/result")).json()["result"]
        assert result == "order 42 is paid, approved by ann"
        assert await line(worker) == f"please decide about {result}"
        assert await line(worker) == f"{ids['second']} blocked"
        steps = (await http.get(f"/v1/jobs/{ids['pay']}/steps")).json()["items"]
    assert [(step["name"], step["value"]) for step in steps] == [
        ("ask", None),
        ("event payout.approved[42]", {"ok": True, "by": "ann"}),
        ("transfer", "order 42 is paid, approved by ann"),
    ]


async def test_a_task_named_like_something_that_every_object_has(server: Running) -> None:
    work, _ = await tokens.create(server.store, "worker", scopes=["work"], queues=["foreign"])
    enqueue, _ = await tokens.create(server.store, "producer", scopes=["enqueue", "read"])
    async with js_worker(server, work) as worker, server.client(enqueue) as http:
        assert await line(worker) == f"working on foreign at {server.url}"
        for task in ("constructor", "toString"):
            made = await http.post("/v1/jobs", json={"task": task, "queue": "foreign"})
            id = JobId(UUID(made.json()["id"]))
            assert await line(worker) == f"{id} scheduled"
            [job] = await server.store.get([id])
            assert job is not None
            assert (job.failures, job.note) == (0, f"this worker does not know {task}")


async def test_a_producer_without_a_good_token_fails_and_does_not_say_it(server: Running) -> None:
    await tokens.create(server.store, "somebody", scopes=["enqueue"])
    producer = await start(str(EXAMPLES / "produce.sh"), server.url, token="hr_not_a_token")
    output, _ = await asyncio.wait_for(producer.communicate(), 60)
    assert producer.returncode != 0
    assert b"unauthorized" in output
    assert b"hr_not_a_token" not in output


def test_the_worker_stays_short() -> None:
    assert len((EXAMPLES / "worker.mjs").read_text().splitlines()) <= 60
