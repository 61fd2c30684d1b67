"""Sentry: the real SDK with a transport that keeps what it is given, in tasks of every kind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from headrace import Cancel, ConfigError, Handle, Headrace, JobCancelled, JobDead, Retry, Snooze, current_job
from headrace.integrations import otel, sentry
from integrations import otel_tasks

ONCE = Retry(max_attempts=1)


class KeptEvents(Transport):
    """Keeps events in a list, as they would be sent."""

    kept: list[dict[str, Any]]

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.kept.append(json.loads(json.dumps(event, default=str)))


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    transport = KeptEvents()
    transport.kept = []
    client = sentry_sdk.Client(
        dsn="https://public@sentry.example.com/1",
        transport=transport,
        default_integrations=False,
        integrations=[LoggingIntegration()],
    )
    scope = sentry_sdk.get_global_scope()
    before = scope.client
    scope.set_client(client)
    yield transport.kept
    scope.set_client(before)
    client.close()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Headrace]:
    app = Headrace(f"sqlite:///{tmp_path / 'jobs.db'}")
    sentry.instrument(app)
    async with app:
        yield app


async def dead(handle: Handle[Any]) -> None:
    with pytest.raises(JobDead):
        await handle.aresult(timeout=120)


async def test_a_failure_has_tags_and_the_fingerprint_of_its_dead_letter(
    app: Headrace, events: list[dict[str, Any]]
) -> None:
    otel.instrument(app)

    @app.task(name="charge", retry=Retry(max_attempts=2, base="1ms"))
    async def charge(order: int) -> None:
        raise LookupError("no such order")

    @app.task(name="export", retry=ONCE, queue="slow")
    def export() -> None:
        raise OSError("disk full")

    async with app.worker(queues=["default", "slow"]):
        first = await charge.using(tenant="acme").aenqueue(7)
        await dead(first)
        second = await export.aenqueue()
        await dead(second)
    groups = {group.title.split(":")[0]: group.fingerprint for group in await app.dead.agroups()}
    common = {"headrace.task": "charge", "headrace.job_id": str(first.id), "headrace.queue": "default"}
    common |= {"headrace.tenant": "acme", "headrace.fingerprint": groups["LookupError"]}
    other = {"headrace.task": "export", "headrace.job_id": str(second.id), "headrace.queue": "slow"}
    assert [event["tags"] for event in events] == [
        common | {"headrace.attempt": 1},
        common | {"headrace.attempt": 2},
        other | {"headrace.attempt": 1, "headrace.fingerprint": groups["OSError"]},
    ]
    assert [event["fingerprint"] for event in events] == [
        ["headrace", groups["LookupError"]],
        ["headrace", groups["LookupError"]],
        ["headrace", groups["OSError"]],
    ]
    assert [event["exception"]["values"][0]["type"] for event in events] == ["LookupError", "LookupError", "OSError"]
    assert [event["transaction"] for event in events] == ["charge", "charge", "export"]


async def test_redacted_values_are_masked_everywhere(app: Headrace, events: list[dict[str, Any]]) -> None:
    @app.task(name="login", redact=["password"], retry=ONCE)
    async def login(user: str, password: str) -> None:
        copy = {"of": [password]}
        raise PermissionError(f"wrong password {copy}")

    async with app.worker():
        await dead(await login.aenqueue("ada", "hush-hush"))
    (event,) = events
    text = json.dumps(event)
    assert "wrong password" in text
    assert "ada" in text
    assert "hush-hush" not in text


async def test_events_that_the_task_sends_itself_have_the_tags(app: Headrace, events: list[dict[str, Any]]) -> None:
    @app.task(name="careful")
    async def careful() -> None:
        await asyncio.sleep(0)
        logging.getLogger("shop").error("stock is low")

    async with app.worker():
        handle = await careful.aenqueue()
        await handle.aresult(timeout=60)
    logging.getLogger("shop").error("outside of any job")
    assert [event["logentry"]["message"] for event in events] == ["stock is low", "outside of any job"]
    assert events[0]["tags"]["headrace.job_id"] == str(handle.id)
    assert "headrace.job_id" not in events[1].get("tags", {})


async def test_what_is_no_failure_is_no_event(app: Headrace, events: list[dict[str, Any]]) -> None:
    @app.task(name="later")
    async def later() -> None:
        if current_job().attempt == 1:
            raise Snooze("1ms")

    @app.task(name="never")
    def never() -> None:
        raise Cancel("not needed")

    async with app.worker():
        await (await later.aenqueue()).aresult(timeout=60)
        with pytest.raises(JobCancelled):
            await (await never.aenqueue()).aresult(timeout=60)
    assert events == []


async def test_a_timeout_is_an_event_although_the_task_raised_nothing(
    app: Headrace, events: list[dict[str, Any]]
) -> None:
    @app.task(name="endless", timeout="50ms", retry=ONCE)
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        handle = await endless.aenqueue()
        await dead(handle)
    (event,) = events
    (group,) = await app.dead.agroups()
    assert event["message"].startswith("endless: timeout: longer than 0.05 s")
    assert (event["level"], event["fingerprint"]) == ("error", ["headrace", group.fingerprint])
    assert event["tags"]["headrace.job_id"] == str(handle.id)


async def test_a_task_in_a_process_sends_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(otel_tasks.FOLDER, str(tmp_path))
    app = otel_tasks.app
    monkeypatch.setattr(app, "settings", app.settings.replace(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    async with app:
        async with app.worker(app="integrations.otel_tasks:app"):
            handle = await otel_tasks.fails_in_child.aenqueue()
            await dead(handle)
        (group,) = await app.dead.agroups()
    (event,) = map(json.loads, (tmp_path / "events").read_text().splitlines())
    assert event["pid"] != os.getpid()
    assert event["tags"]["headrace.job_id"] == str(handle.id)
    assert event["fingerprint"] == ["headrace", group.fingerprint]


def test_an_app_is_instrumented_once() -> None:
    app = Headrace("memory://")
    sentry.instrument(app)
    with pytest.raises(ConfigError, match="instrumented already"):
        sentry.instrument(app)
