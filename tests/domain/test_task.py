"""Tasks: names, options and calls, checked where they are written and before anything is stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headrace import Headrace, Retry
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.settings import Settings
from headrace.task.codec import JobOptions, decode_options
from headrace.task.function import default_name
from headrace.task.task import Task


@pytest.fixture
def app() -> Headrace:
    return Headrace(settings=Settings(url="memory://"))


async def module_level(x: int = 0) -> int:
    return x


def module_level_sync(x: int = 0) -> int:
    return x


class Group:
    @staticmethod
    def inner() -> None: ...


# ── declaring ────────────────────────────────────────────────────────────────


def test_a_task_is_still_its_function(app):
    task = app.task(module_level)
    assert asyncio.run(task(7)) == 7
    assert app.task(module_level_sync)(8) == 8
    assert task.__name__ == "module_level"
    assert app.tasks[task.name] is task
    assert isinstance(task, Task)


def test_defaults(app):
    options = app.task(module_level).options
    assert (options.queue, options.priority, options.timeout, options.executor) == ("default", 0, None, "async")
    assert options.result_ttl is None
    assert options.retry == Retry()
    assert options.max_payload == 256 * 1024
    assert app.task(module_level_sync).options.executor == "thread"


def test_options_are_parsed(app):
    task = app.task(
        name="billing.charge",
        queue="billing",
        priority=5,
        timeout="2m",
        result_ttl=None,
        redact=["password"],
        max_payload=10,
        expires="10m",
        deadline=timedelta(hours=1),
    )(module_level)
    assert task.name == "billing.charge"
    assert task.options.timeout == timedelta(minutes=2)
    assert task.options.result_ttl is None
    assert task.options.redact == ("password",)
    assert task.options.max_payload == 10
    assert (task.options.expires, task.options.deadline) == (timedelta(minutes=10), timedelta(hours=1))
    # What a task declares is not repeated in its jobs, but for the fields to mask where the task is not known.
    assert decode_options(task.job(7).job.options) == JobOptions(redact=("password",))


def test_names_by_default(app):
    def local() -> None: ...

    assert default_name(module_level) == f"{__name__}.module_level"
    assert default_name(Group.inner) == f"{__name__}.Group.inner"
    assert default_name(local) == f"{__name__}.test_names_by_default.local"


def test_a_script_names_its_tasks_as_its_worker_would():
    def script() -> None: ...

    script.__module__ = "__main__"
    assert not default_name(script).startswith("__main__")


def test_processes_take_what_can_be_imported(app):
    assert app.task(name="a", executor="process")(module_level).options.executor == "process"
    assert app.task(name="b", executor="process")(module_level_sync).options.executor == "process"


def local_function():
    def local() -> None: ...

    return local


def generator():
    yield


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda: None, {}, r'it has no name of its own: give one with name="…"'),
        (lambda: None, {"name": "x", "executor": "process"}, "move it to module level"),
        (local_function(), {"executor": "process"}, "move it to module level"),
        (module_level, {"executor": "thread"}, "needs a plain def"),
        (module_level_sync, {"executor": "async"}, "needs an async def"),
        (module_level, {"executor": "fiber"}, "executor = 'fiber': one of async, thread, process"),
        (module_level, {"queue": "Billing"}, "is not a valid queue name"),
        (module_level, {"priority": 5000}, "priority = 5000"),
        (module_level, {"timeout": "soon"}, "timeout = 'soon' is not a duration"),
        (module_level, {"timeout": "0s"}, "timeout = '0s': must be more than 0"),
        (module_level, {"timeout": 30}, "timeout = 30 is not a duration"),
        (module_level, {"expires": "0s"}, "expires = '0s': must be more than 0"),
        (module_level, {"deadline": 60}, "deadline = 60 is not a duration"),
        (module_level, {"expires": datetime(2030, 1, 1, tzinfo=UTC)}, "is not a duration"),
        (module_level, {"result_ttl": "-1s"}, "result_ttl = '-1s' is not a duration"),
        (module_level, {"retry": 5}, r"retry = 5: write Retry\(max_attempts=…\)"),
        (module_level, {"name": "no spaces"}, "is not a valid task name"),
        (module_level, {"tenant": "acme"}, "tenant = 'acme': a function of the task's arguments"),
        (module_level, {"redact": "password"}, "redact = 'password': a list of field names"),
        (module_level, {"redact": [1]}, "a list of field names"),
        (module_level, {"max_payload": 0}, "max_payload = 0"),
        (generator, {}, "a generator cannot be a task"),
        (Group, {}, "a task is a function"),
        (7, {}, "a task is a function"),
    ],
)
def test_wrong_declarations_are_refused_where_they_are_written(app, function, options, message):
    with pytest.raises(ConfigError, match=message):
        app.task(**options)(function)
    assert app.tasks == {}


def test_two_tasks_of_one_name_are_refused(app):
    app.task(module_level)
    with pytest.raises(ConfigError, match="declared twice"):
        app.task(module_level)
    with pytest.raises(ConfigError, match="task already"):
        app.task(app.tasks[f"{__name__}.module_level"])


# ── one job's options ────────────────────────────────────────────────────────


def test_a_job_carries_the_tasks_options(app):
    task = app.task(queue="billing", priority=5, tenant=lambda x: f"shop{x}")(module_level)
    job = task.job(7).job
    assert (job.task, job.due, job.key, job.options) == (task.name, None, None, None)
    assert (job.lane.queue, job.lane.priority, job.lane.tenant) == ("billing", 5, "shop7")
    assert task.codec.decode(job.payload) == ((7,), {})


def test_jobs_of_one_lane_share_it(app):
    task = app.task(module_level)
    assert task.job(1).job.lane is task.job(2).job.lane


def test_using_overrides(app):
    task = app.task(tenant=lambda x: "other")(module_level)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    job = (
        task.using(run_at=when, priority=9, tenant="acme", queue="q", timeout="5s", max_attempts=2, result_ttl="1h")
        .job(7)
        .job
    )
    assert (job.lane.queue, job.lane.priority, job.lane.tenant, job.due) == ("q", 9, "acme", when)
    options = decode_options(job.options)
    assert (options.timeout, options.max_attempts, options.result_ttl) == (5.0, 2, 3600.0)
    assert task.using(delay="5m").job(7).job.due == timedelta(minutes=5)
    assert task.using(delay="0s").job(7).job.due is None


def test_limits_in_time_travel_with_the_job(app):
    when = datetime(2030, 1, 1, tzinfo=UTC)
    job = app.task(module_level).using(expires="10m", deadline=when, delay="9m").job(7).job
    options = decode_options(job.options)
    assert (options.expires, options.deadline, options.timeout) == (600.0, when, None)


def test_a_job_that_could_never_start_is_refused(app):
    task = app.task(expires="10m")(module_level)
    with pytest.raises(ConfigError, match="due after 10m and expires = 10m: it could never start"):
        task.using(delay="10m")
    task.using(delay="10m", expires="11m")
    task.using(run_at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("wrong", [b'{"expires": -1}', b'{"deadline": 1e300}', b'{"expires": "2030-01-01T00:00:00"}'])
def test_limits_that_make_no_sense_are_not_read(wrong):
    with pytest.raises(BadArguments, match="options cannot be read"):
        decode_options(wrong)


def test_a_key_has_the_digest_of_the_arguments(app):
    def keyed(data: dict[str, int], n: int = 0) -> None: ...

    task = app.task(keyed).using(key="order-7", key_ttl="10m")
    one = task.job({"a": 1, "b": 2}).job.key
    assert one is not None
    assert (one.name, one.ttl) == ("order-7", timedelta(minutes=10))
    assert task.job({"b": 2, "a": 1}).job.key == one
    assert task.job(data={"b": 2, "a": 1}).job.key == one
    assert task.job({"a": 1, "b": 3}).job.key != one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": "5m", "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "exclude each other"),
        ({"delay": "soon"}, "delay = 'soon' is not a duration"),
        ({"delay": 5}, "delay = 5 is not a duration"),
        ({"delay": float("inf")}, "delay = inf is not a duration"),
        ({"run_at": datetime.fromisoformat("2030-01-01T00:00")}, "has no time zone"),
        ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "is more than 3650 days ahead"),
        ({"run_at": float("nan")}, "run_at = nan: an aware datetime"),
        ({"run_at": -1}, "run_at = -1: an aware datetime"),
        ({"run_at": "2030-01-01"}, "an aware datetime"),
        ({"priority": 1e9}, "priority"),
        ({"tenant": "a b"}, "is not a valid tenant"),
        ({"queue": "Q"}, "is not a valid queue name"),
        ({"key": ""}, "printable"),
        ({"key": "k" * 1000}, "printable"),
        ({"key_ttl": "1d"}, "key_ttl without key"),
        ({"key": "k", "key_ttl": "0s"}, "key_ttl = '0s'"),
        ({"timeout": "0s"}, "timeout = '0s'"),
        ({"expires": "0s"}, "expires = '0s': must be more than 0"),
        ({"expires": 60}, "expires = 60 is not a duration"),
        ({"deadline": "soon"}, "deadline = 'soon' is not a duration"),
        ({"deadline": datetime.fromisoformat("2030-01-01T00:00")}, "deadline = .* has no time zone"),
        ({"delay": "2h", "deadline": "1h"}, "due after 2h and deadline = 1h: it could never start"),
        (
            {"run_at": datetime(2030, 1, 2, tzinfo=UTC), "expires": datetime(2030, 1, 1, tzinfo=UTC)},
            "it could never start",
        ),
        ({"max_attempts": 0}, "max_attempts = 0"),
        ({"max_attempts": 999999}, "max_attempts"),
        ({"result_ttl": "forever"}, "result_ttl"),
    ],
)
def test_wrong_options_are_refused_before_any_argument(app, options, message):
    with pytest.raises(ConfigError, match=message):
        app.task(module_level).using(**options)


def test_a_transaction_does_not_belong_to_a_job_of_a_bulk(app):
    with pytest.raises(ConfigError, match="enqueue_many"):
        app.task(module_level).using(tx=object()).job(1)


def test_a_tenant_function_that_fails_is_told(app):
    task = app.task(tenant=lambda x: 1 // x)(module_level)
    with pytest.raises(BadArguments, match="tenant= function raised ZeroDivisionError"):
        task.job(0)
    with pytest.raises(BadArguments, match="tenant= function: 1 is not a valid tenant"):
        task.job(1)


def test_payloads_have_a_limit(app):
    def text(value: str) -> None: ...

    task = app.task(text)
    overhead = len(task.job("x" * 100_000).job.payload) - 100_000
    assert task.job("x" * (256 * 1024 - overhead))
    with pytest.raises(PayloadTooLarge, match="262,145 bytes, the limit is 262,144"):
        task.job("x" * (256 * 1024 - overhead + 1))


# ── advice about tasks ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("function", "options", "settings", "message"),
    [
        (module_level_sync, {"timeout": "5s"}, {}, "a thread cannot be killed"),
        (module_level, {"executor": "process", "timeout": "2s"}, {}, "more than twice its time"),
        (module_level, {"executor": "process", "timeout": "1m"}, {}, "longer than drain"),
        (module_level, {"result_ttl": "8d"}, {}, "longer than keep_done"),
        (module_level, {"queue": "b"}, {"queues": ["a"]}, "queue 'b' is not among queues a"),
    ],
)
def test_tasks_and_settings_that_do_not_go_together(app, function, options, settings, message):
    app.task(**options)(function)
    found = app.settings.replace(url="sqlite:///x.db", **settings).problems(app.tasks)
    # One more finding names the tasks without a timeout.
    (problem,) = [each for each in found if each.about != "timeout"]
    assert ("timeout" in options) == (len(found) == 1)
    assert message in problem.message
    assert problem.about.startswith("task ")


# ── calls of other queues ────────────────────────────────────────────────────


def add(x: int, y: int) -> int:
    return x + y


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("delay", "add.enqueue(…)"),
        ("send", "add.enqueue(…)"),
        ("defer", "add.enqueue(…)"),
        ("kiq", "await add.aenqueue(…)"),
        ("defer_async", "await add.aenqueue(…)"),
        ("apply_async", 'add.using(delay="5m").enqueue(…)'),
        ("send_with_options", 'add.using(delay="5m").enqueue(…)'),
        ("configure", 'add.using(delay="5m").enqueue(…)'),
        ("schedule", 'add.using(delay="5m").enqueue(…)'),
        ("s", "add.job(…)"),
        ("si", "add.job(…)"),
        ("signature", "add.job(…)"),
        ("message", "add.job(…)"),
        ("apply", "add(…)"),
        ("call_local", "add(…)"),
    ],
)
def test_the_call_of_another_queue_names_the_right_call(app, name, right):
    task = app.task(add)
    with pytest.raises(AttributeError, match=rf"headrace tasks have no {name}\(\)") as caught:
        getattr(task, name)
    assert right in str(caught.value)
    assert not hasattr(task, name)
    assert name not in dir(task)


def test_the_call_of_another_queue_after_using_names_the_right_call(app):
    with pytest.raises(AttributeError, match=r"headrace tasks have no delay\(\)") as caught:
        _ = app.task(add).using(priority=9).delay
    assert "enqueue(…)" in str(caught.value)


def test_another_missing_attribute_has_the_usual_error(app):
    with pytest.raises(AttributeError, match="'SyncTask' object has no attribute 'dealy'"):
        _ = app.task(add).dealy


def test_an_attribute_of_the_function_stays_readable(app):
    def report() -> None: ...

    report.__dict__["schedule"] = "nightly"
    assert app.task(report).schedule == "nightly"
    assert "schedule" in dir(app.task(name="other")(report))
