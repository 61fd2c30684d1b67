"""Flask: the extension, tasks in the application's context, jobs that wait for a commit, the command, and the example."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, has_app_context
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from headrace import ConfigError, Headrace, Retry
from headrace.errors import Unavailable
from headrace.integrations.flask import FlaskHeadrace
from integrations.kit import ROOT, load
from servers.process import free_port


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def test_an_application_and_its_extension(url: str) -> None:
    flask_app = Flask("shop")
    queue = FlaskHeadrace(flask_app, url)
    assert flask_app.extensions["headrace"] is queue
    assert queue.flask is flask_app
    with pytest.raises(ConfigError, match="init_app once"):
        FlaskHeadrace(flask_app)


def test_the_configuration_says_where_jobs_live(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "memory://")
    queue, given = FlaskHeadrace(), FlaskHeadrace(None, "redis://given")
    assert queue.settings.url == "memory://"
    for each in (queue, given):
        flask_app = Flask("shop")
        flask_app.config["HEADRACE_URL"] = url
        each.init_app(flask_app)
    assert queue.settings.url == url
    assert given.settings.url == "redis://given"


def test_without_an_application_tasks_say_so() -> None:
    queue = FlaskHeadrace(None, "memory://")

    @queue.task(name="t")
    def task() -> None: ...

    with pytest.raises(ConfigError, match="flask headrace worker"):
        task()


async def test_tasks_run_in_the_applications_context() -> None:
    flask_app = Flask("shop")
    flask_app.config["NAME"] = "tea shop"
    left: list[str] = []
    flask_app.teardown_appcontext(lambda _: left.append("torn down"))
    queue = FlaskHeadrace(flask_app, "memory://")

    @queue.task
    def plain(times: int) -> str:
        return current_app.config["NAME"] * times

    @queue.task(name="waits", retry=Retry(max_attempts=1))
    async def waits(times: int = 1) -> str:
        return current_app.config["NAME"] * times

    assert plain.name.endswith("plain")
    async with queue.worker():
        assert await (await plain.aenqueue(2)).aresult(timeout=60) == "tea shoptea shop"
        assert await (await waits.aenqueue(times=1)).aresult(timeout=60) == "tea shop"
    assert left == ["torn down"] * 2
    assert not has_app_context()
    assert plain(1) == "tea shop"  # called here and now, too
    with pytest.raises(ConfigError, match="a task is a function"):
        queue.task(Flask)  # type: ignore[type-var]
    await queue.aclose()


# ── after a commit ───────────────────────────────────────────────────────────


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield sessionmaker(engine)
    engine.dispose()


@pytest.fixture
def queue() -> Iterator[FlaskHeadrace]:
    app = FlaskHeadrace(Flask("shop"), "memory://")

    @app.task(name="ship")
    def ship(order: int) -> None: ...

    yield app
    app.close()


def shipped(queue: Headrace) -> list[int]:
    task = queue.tasks["ship"]
    return sorted(task.codec.decode(job.payload)[0][0] for job in queue.find().jobs)


def write(session: Any) -> None:
    session.execute(text("insert into orders values (1)"))


def test_jobs_wait_for_the_commit(queue: FlaskHeadrace, sessions: sessionmaker[Session]) -> None:
    ship = queue.tasks["ship"]
    with sessions() as session:
        write(session)
        queue.after_commit(session, ship.job(1), ship.job(2))
        assert shipped(queue) == []
        session.commit()
        assert shipped(queue) == [1, 2]
        session.commit()
        assert shipped(queue) == [1, 2]
        queue.after_commit(session, ship.job(3))  # in no transaction yet
        write(session)
        session.commit()
    assert shipped(queue) == [1, 2, 3]


def test_a_store_that_comes_back_gets_the_jobs(
    queue: FlaskHeadrace, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = queue.tasks["ship"]
    enqueue_many, faults = queue.enqueue_many, [Unavailable("away")] * 3

    def sometimes(calls: Any) -> Any:
        if faults:
            raise faults.pop()
        return enqueue_many(calls)

    monkeypatch.setattr("headrace.integrations.sessions.PAUSE", 0.0)
    monkeypatch.setattr(queue, "enqueue_many", sometimes)
    with sessions() as session:
        write(session)
        queue.after_commit(session, ship.job(1), ship.job(2))
        session.commit()
    assert shipped(queue) == [1, 2]


def test_a_commit_is_one_also_when_the_store_is_away(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are there: to say that they are not would be wrong, and the jobs are in the log."""
    monkeypatch.setattr("headrace.integrations.sessions.PATIENCE", 0.0)
    away = FlaskHeadrace(Flask("shop"), f"redis://127.0.0.1:{free_port()}")

    @away.task(name="ship")
    def ship(order: int) -> None: ...

    with sessions() as session:
        write(session)
        away.after_commit(session, ship.job(1), ship.job(2))
        session.commit()
        assert session.execute(text("select count(*) from orders")).scalar() == 1
        session.commit()  # and they are not tried again by another
    [said] = [each.message for each in caplog.records if each.name == "headrace.integrations"]
    assert said.startswith("committed, but its 2 jobs (ship) were not enqueued: ")
    away.close()


def test_jobs_vanish_with_a_rollback(queue: FlaskHeadrace, sessions: sessionmaker[Session]) -> None:
    ship = queue.tasks["ship"]
    with sessions() as session:
        write(session)
        queue.after_commit(session, ship.job(1))
        session.rollback()
        write(session)
        session.commit()
    with sessions() as session:
        write(session)
        queue.after_commit(session, ship.job(2))  # and it is closed without a commit
    assert shipped(queue) == []


def test_savepoints(queue: FlaskHeadrace, sessions: sessionmaker[Session]) -> None:
    ship = queue.tasks["ship"]
    with sessions() as session:
        write(session)
        queue.after_commit(session, ship.job(1))
        with session.begin_nested():
            queue.after_commit(session, ship.job(2))
            with session.begin_nested():
                queue.after_commit(session, ship.job(3))
        assert shipped(queue) == []  # a savepoint is no commit
        outer = session.begin_nested()
        with session.begin_nested():
            queue.after_commit(session, ship.job(4))
        outer.rollback()
        session.commit()
    assert shipped(queue) == [1, 2, 3]


def test_a_scoped_session(queue: FlaskHeadrace, sessions: sessionmaker[Session]) -> None:
    session = scoped_session(sessions)
    write(session)
    queue.after_commit(session, queue.tasks["ship"].job(1))
    session.commit()
    session.remove()
    assert shipped(queue) == [1]


# ── the example, and its command ─────────────────────────────────────────────


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "shop.db"))
    migrated = flask("headrace", "migrate")
    assert migrated.communicate(timeout=60)[1] == ""
    example = load("flask_app")
    yield example
    example.queue.close()
    example.engine.dispose()
    del sys.modules["examples.flask_app"]


def flask(*args: str) -> subprocess.Popen[str]:
    names = [name for name in os.environ if name.startswith(("HEADRACE_", "FLASK_"))]
    return subprocess.Popen(
        [sys.executable, "-m", "flask", "--app", "examples.flask_app", *args],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in names},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_example_ships(shop: Any) -> None:
    client = shop.create_app().test_client()
    made = client.post("/orders", json={"item": "tea", "count": 2})
    assert made.status_code == 201
    id = made.get_json()["job"]
    assert client.get(f"/jobs/{id}").get_json() == {"state": "ready"}
    worker = flask("headrace", "worker", "--log-level", "error")
    # Warnings tell of a machine that is too busy to turn the event loop in time, which is no fault of the example.
    try:
        assert shop.ship.handle(id).result(timeout=60) == "the tea shop: 2 × tea shipped"
    finally:
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=60)
    assert (worker.returncode, errors) == (0, "")
    with Session(shop.engine) as session:
        assert session.get_one(shop.Order, made.get_json()["order"]).shipped


def test_an_order_that_is_rolled_back_leaves_no_job(shop: Any) -> None:
    client = shop.create_app().test_client()
    assert client.post("/orders", json={"item": "nothing", "count": 1}).status_code == 409
    assert shop.queue.find().jobs == []
    with Session(shop.engine) as session:
        assert session.get(shop.Order, 1) is None
    assert client.get("/jobs/00000000-0000-7000-8000-000000000000").status_code == 404


def test_the_command_is_headraces_own(shop: Any) -> None:
    client = shop.create_app().test_client()
    id = client.post("/orders", json={"item": "tea", "count": 2}).get_json()["job"]
    listed = flask("headrace", "jobs", "list", "--queue", "shipping")
    out, errors = listed.communicate(timeout=60)
    assert (listed.returncode, errors) == (0, "")
    assert id in out
    helped = flask("headrace", "--help")
    out, _ = helped.communicate(timeout=60)
    assert "Usage: flask headrace" in out
    wrong = flask("headrace", "jobs", "show", "nonsense")
    _, errors = wrong.communicate(timeout=60)
    assert wrong.returncode == 2
    assert errors.startswith("error: ")
