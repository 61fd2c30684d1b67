"""Three ways to one store: Python, the command line and HTTP do the same, and write the same audit entries."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import pytest
from click.testing import CliRunner

from conformance.test_workers import presence
from headrace import Headrace, Limit
from headrace.cli.root import root
from headrace.model.job import JobId, JobState
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import PAUSED, Again, Finish
from headrace.model.records import Filter
from headrace.operate import shown
from headrace.operate.limits import Limits
from headrace.store.audit import Audit, whoami
from headrace.store.contract import Store
from server.running import Running

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    """One that three processes could share."""
    return str(request.param)


class Door(Protocol):
    async def jobs(self, verb: str, id: UUID) -> None: ...
    async def pause(self, kind: str, name: str) -> None: ...
    async def resume(self, kind: str, name: str) -> None: ...
    async def replay(self, task: str) -> None: ...
    async def discard(self, id: UUID, reason: str) -> None: ...
    async def limit(self, name: str, concurrency: int) -> None: ...
    async def reset(self, name: str) -> None: ...
    async def schedule(self, name: str) -> None: ...
    async def scheduled(self, verb: str, name: str) -> None: ...


class Python:
    who = whoami()

    def __init__(self, server: Running) -> None:
        self.app = server.app

    async def jobs(self, verb: str, id: UUID) -> None:
        await getattr(self.app, f"a{verb}")(id)

    async def pause(self, kind: str, name: str) -> None:
        await self.app.apause(**{kind: name})

    async def resume(self, kind: str, name: str) -> None:
        await self.app.aresume(**{kind: name})

    async def replay(self, task: str) -> None:
        await self.app.dead.areplay(task=task)

    async def discard(self, id: UUID, reason: str) -> None:
        await self.app.dead.adiscard(id, reason=reason)

    async def limit(self, name: str, concurrency: int) -> None:
        await self.app.limits.aset(name, concurrency=concurrency)

    async def reset(self, name: str) -> None:
        await self.app.limits.areset(name)

    async def schedule(self, name: str) -> None:
        await self.app.schedules.aadd(name, every="1h", job=self.app.tasks["add"].job(1), replace=True)

    async def scheduled(self, verb: str, name: str) -> None:
        await getattr(self.app.schedules, f"a{verb}")(name)


class CommandLine:
    who = whoami()

    def __init__(self, server: Running) -> None:
        self.url = server.app.settings.url

    async def call(self, *args: str) -> None:
        done = await asyncio.to_thread(CliRunner().invoke, root, [*args, "--url", self.url])
        assert done.exit_code == 0, done.output

    async def jobs(self, verb: str, id: UUID) -> None:
        await self.call("jobs", verb, str(id))

    async def worker(self, verb: str, id: UUID) -> None:
        await self.call("workers", verb, str(id))

    async def pause(self, kind: str, name: str) -> None:
        await self.call("pause", f"--{kind}", name)

    async def resume(self, kind: str, name: str) -> None:
        await self.call("resume", f"--{kind}", name)

    async def replay(self, task: str) -> None:
        await self.call("dead", "replay", "--task", task)

    async def discard(self, id: UUID, reason: str) -> None:
        await self.call("dead", "discard", str(id), "--reason", reason)

    async def limit(self, name: str, concurrency: int) -> None:
        await self.call("limits", "set", name, "--concurrency", str(concurrency))

    async def reset(self, name: str) -> None:
        await self.call("limits", "reset", name)

    async def schedule(self, name: str) -> None:
        await self.call("schedules", "add", name, "add", "1", "--every", "1h", "--raw", "--replace")

    async def scheduled(self, verb: str, name: str) -> None:
        await self.call("schedules", verb.replace("_", "-"), name)


class Http:
    who = "local"

    def __init__(self, server: Running) -> None:
        self.http = server.http

    async def call(self, path: str, method: str = "POST", **body: Any) -> None:
        answer = await self.http.request(method, path, json=body or None)
        assert answer.is_success, answer.text

    async def jobs(self, verb: str, id: UUID) -> None:
        await (
            self.call(f"/v1/jobs/{id}", "DELETE")
            if verb == "delete"
            else self.call(f"/v1/jobs/{id}/{verb}", reason=None)
        )

    async def worker(self, verb: str, id: UUID) -> None:
        await self.call(f"/v1/workers/{id}/{verb}")

    async def pause(self, kind: str, name: str) -> None:
        await self.call("/v1/pauses", **{kind: name})

    async def resume(self, kind: str, name: str) -> None:
        await self.call("/v1/pauses/resume", **{kind: name})

    async def replay(self, task: str) -> None:
        await self.call("/v1/dead/replay", task=task)

    async def discard(self, id: UUID, reason: str) -> None:
        await self.call("/v1/dead/discard", ids=[str(id)], reason=reason)

    async def limit(self, name: str, concurrency: int) -> None:
        await self.call(f"/v1/limits/{name}", "PUT", concurrency=concurrency)

    async def reset(self, name: str) -> None:
        await self.call(f"/v1/limits/{name}", "DELETE")

    async def schedule(self, name: str) -> None:
        await self.call("/v1/schedules", name=name, every="1h", job={"task": "add", "args": [1]}, replace=True)

    async def scheduled(self, verb: str, name: str) -> None:
        path = f"/v1/schedules/{name}"
        await (self.call(path, "DELETE") if verb == "remove" else self.call(f"{path}/{verb.replace('_', '-')}"))


DOORS = [Python, CommandLine, Http]


async def claimed(store: Store, settlement: Any, queue: str = "default") -> None:
    lease = await store.claim(Ask(new_worker_id(), (queue,), 100, DAY, new_token()))
    assert lease is not None
    await store.settle(lease.token, [(position, settlement) for position in range(len(lease.jobs))])


async def new_jobs(app: Headrace, count: int = 1) -> list[JobId]:
    return [(await app.tasks["add"].aenqueue(n)).id for n in range(count)]


@pytest.mark.parametrize("make", DOORS)
async def test_every_door_leaves_the_same_entries(server: Running, make: type[Any]) -> None:
    door: Door = make(server)
    await Limits(server.store).declare({"shop": Limit("shop", concurrency=9).declared})
    (first,) = await new_jobs(server.app)
    await door.jobs("cancel", first)
    await door.jobs("retry", first)
    await door.jobs("cancel", first)
    await door.jobs("delete", first)
    await door.pause("queue", "mail")
    await door.resume("queue", "mail")
    await door.pause("task", "add")
    await door.resume("task", "add")
    await door.pause("tenant", "acme")
    await door.resume("tenant", "acme")
    dead = await new_jobs(server.app, 2)
    await claimed(server.store, Finish(JobState.DEAD, note="max_attempts"))
    await door.discard(dead[0], "all wrong")
    await door.replay("add")
    await door.limit("shop", 3)
    await door.reset("shop")
    await door.schedule("hourly")
    for verb in ("pause", "resume", "run_now", "remove"):
        await door.scheduled(verb, "hourly")
    entries = await Audit(server.store).read(await server.store.now() - DAY)
    assert [(entry.action, entry.what, entry.jobs) for entry in reversed(entries)] == [
        ("jobs.cancel", str(first), 1),
        ("jobs.retry", str(first), 1),
        ("jobs.cancel", str(first), 1),
        ("jobs.delete", str(first), 1),
        ("queues.pause", "mail", 0),
        ("queues.resume", "mail", 0),
        ("tasks.pause", "add", 0),
        ("tasks.resume", "add", 0),
        ("tenants.pause", "acme", 0),
        ("tenants.resume", "acme", 0),
        ("dead.discard", f"{dead[0]}: all wrong", 1),
        ("dead.replay", "task=add", 1),
        ("limits.set", "shop: 3 at once", 0),
        ("limits.reset", "shop", 0),
        ("schedules.add", "hourly: every 1h add", 0),
        ("schedules.pause", "hourly", 0),
        ("schedules.resume", "hourly", 0),
        ("schedules.run_now", "hourly", 1),
        ("schedules.remove", "hourly", 0),
    ]
    assert {entry.who for entry in entries} == {make.who}
    await server.app.aclose()


@pytest.mark.parametrize("make", DOORS)
async def test_resuming_a_task_brings_forward_the_jobs_that_were_put_off(server: Running, make: type[Any]) -> None:
    door: Door = make(server)
    put_off, later = await new_jobs(server.app, 2)
    await door.pause("task", "add")
    lease = await server.store.claim(Ask(new_worker_id(), ("default",), 2, DAY, new_token()))
    assert lease is not None
    for position, note in enumerate((f"{PAUSED} by {make.who}", "not now")):
        await server.store.settle(lease.token, [(position, Again(0, 0, due=DAY, note=note))])
    await door.resume("task", "add")
    ready = await server.store.find(Filter(states=frozenset({JobState.READY})))
    assert [job.id for job in ready.jobs] == [put_off]
    (other,) = await server.store.get([later])
    assert other is not None
    assert other.state is JobState.SCHEDULED
    await server.app.aclose()


async def test_a_job_that_came_over_http_is_masked_where_its_task_is_not_known(server: Running) -> None:
    made = await server.http.post("/v1/jobs", json={"task": "login", "args": ["ada", "hunter2"]})
    other = await server.http.post("/v1/jobs", json={"task": "login", "kwargs": {"user": "ada", "password": "hunter2"}})
    for job in await server.store.get([JobId(UUID(each.json()["id"])) for each in (made, other)]):
        assert job is not None
        assert "hunter2" not in str(shown.arguments(None, job))
        assert "ada" in str(shown.arguments(None, job))


async def test_a_handles_cancel_is_in_the_audit_log_and_a_late_one_is_not(server: Running) -> None:
    handle = await server.app.tasks["add"].aenqueue(1)
    assert await handle.acancel()
    assert not await handle.acancel()
    (entry,) = await Audit(server.store).read(await server.store.now() - DAY)
    assert (entry.who, entry.action, entry.what, entry.jobs) == (whoami(), "jobs.cancel", str(handle.id), 1)
    await server.app.aclose()


@pytest.mark.parametrize("make", [CommandLine, Http])
async def test_orders_to_a_worker_leave_the_same_entries(server: Running, make: type[Any]) -> None:
    door = make(server)
    worker = presence()
    await server.store.heartbeat([], DAY, worker)
    for verb in ("quiet", "resume", "drain"):
        await door.worker(verb, worker.id)
    entries = await Audit(server.store).read(await server.store.now() - DAY)
    expected = [(f"workers.{verb}", worker.name, make.who) for verb in ("quiet", "resume", "drain")]
    assert [(entry.action, entry.what, entry.who) for entry in reversed(entries)] == expected
    assert b'"drain"' in (await server.store.heartbeat([], DAY, worker)).order
