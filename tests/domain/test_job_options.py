"""The options of a job are declared once: every entrance takes what the declaration names, and nothing else."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec
import pytest

from headrace import ConfigError, Headrace
from headrace.cli import params
from headrace.server.api.job_request import JobRequest
from headrace.task.codec import decode_options
from headrace.task.job_options import OPTIONS, JobKeywords, JobOptions, carried, check_stored, stored
from headrace.task.task import Task

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WHEN = datetime(2030, 1, 1, tzinfo=UTC)
JSON = {each.name for each in OPTIONS.values() if not each.code_only}
SAMPLES: dict[str, tuple[Any, str, Any]] = {
    "queue": ("slow", "slow", "slow"),
    "priority": (-3, "-3", -3),
    "delay": (timedelta(minutes=5), "5m", "5m"),
    "run_at": (WHEN, "2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
    "tenant": ("acme", "acme", "acme"),
    "key": ("order-7", "order-7", "order-7"),
    "key_ttl": (timedelta(hours=1), "1h", "1h"),
    "timeout": (timedelta(seconds=5), "5s", "5s"),
    "expires": (WHEN, "2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
    "deadline": (timedelta(hours=2), "2h", "2h"),
    "max_attempts": (2, "2", 2),
    "result_ttl": (timedelta(0), "0s", "0s"),
    "webhook": ("https://example.com/x", "https://example.com/x", "https://example.com/x"),
    "trace": (TRACE, TRACE, TRACE),
}
"""The same value in Python, on a command line and in JSON."""


@pytest.fixture
def task() -> Task[..., Any]:
    @Headrace("memory://").task(name="charge")
    def charge(order: int) -> None: ...

    return charge


def test_every_option_has_a_doc_of_one_sentence_or_two() -> None:
    for option in OPTIONS.values():
        assert option.doc.endswith("."), option.name
        assert "\n" not in option.doc


def test_what_the_worker_needs_has_a_place_in_the_stored_options() -> None:
    fields = {each.name: each for each in msgspec.structs.fields(JobOptions)}
    assert {each.name for each in carried().values()} <= set(fields)
    assert all(each.default in {None, ()} for each in fields.values()), "a job without options stores nothing"


def test_using_takes_what_the_declaration_names() -> None:
    [options] = [each for each in inspect.signature(Task.using).parameters.values() if each.kind is each.VAR_KEYWORD]
    assert JobKeywords.__name__ in str(options.annotation)
    assert set(OPTIONS) == set(JobKeywords.__annotations__)


def test_a_body_has_the_fields_that_the_declaration_names() -> None:
    assert {*JobRequest.__struct_fields__} == {"task", "args", "kwargs"} | JSON


def test_a_command_has_the_flags_that_the_declaration_names() -> None:
    @params.declared(OPTIONS, without=("key",))
    def command() -> None: ...

    flags = {each.name: each for each in click.command(command).params if isinstance(each, click.Option)}
    assert set(flags) == JSON - {"key"}
    assert flags["max_attempts"].opts == ["--max-attempts"]
    assert (flags["max_attempts"].help or "").startswith(OPTIONS["max_attempts"].doc)


def test_each_entrance_reads_the_same_value() -> None:
    assert set(SAMPLES) == JSON
    for name, (value, text, json) in SAMPLES.items():
        option = OPTIONS[name]
        for read in (value, option.from_text(text), option.from_json(json)):
            assert option.check(read) == value


def test_what_is_stored_is_what_was_given(task: Task[..., Any]) -> None:
    for option in carried().values():
        value, *_ = SAMPLES[option.name]
        given: Any = {option.name: value}
        own = decode_options(task.using(**given).job(7).job.options)
        assert own == stored(given)
        plain = value.total_seconds() if isinstance(value, timedelta) else value
        assert getattr(own, option.name) == plain
        check_stored(own)


def test_none_is_the_same_as_leaving_an_option_out(task: Task[..., Any]) -> None:
    nothing: Any = dict.fromkeys(OPTIONS)
    assert task.using(**nothing).job(7).job == task.job(7).job


def test_an_option_that_is_not_declared_is_refused_as_in_any_call(task: Task[..., Any]) -> None:
    wrong: Any = {"labl": "x"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'labl'"):
        task.using(**wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "Loud"),
        ("priority", 1001),
        ("delay", 5),
        ("run_at", "2030-01-01"),
        ("run_at", datetime(2030, 1, 1)),  # noqa: DTZ001  # the point of it
        ("tenant", "a b"),
        ("key", ""),
        ("key_ttl", "0s"),
        ("timeout", "0s"),
        ("expires", "soon"),
        ("deadline", timedelta(days=-1)),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("result_ttl", "forever"),
        ("webhook", "http://127.0.0.1/"),
    ],
)
def test_a_wrong_value_is_refused(task: Task[..., Any], name: str, value: Any) -> None:
    given: Any = {name: value} | ({"key": "k"} if name == "key_ttl" else {})
    with pytest.raises(ConfigError):
        task.using(**given)


@pytest.mark.parametrize(
    "text",
    [
        TRACE,
        TRACE.removesuffix("01") + "00",
        TRACE.replace("00-", "cc-", 1) + "-what-a-later-version-adds",
    ],
)
def test_a_trace_is_the_text_of_a_traceparent(task: Task[..., Any], text: str) -> None:
    job = task.using(trace=text).job(1).job
    assert decode_options(job.options).trace == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        7,
        TRACE.upper(),
        TRACE + "\n",
        TRACE + "-more",
        TRACE.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        TRACE.replace("00-", "cc-", 1) + "-" + "x" * 200,
        TRACE.replace("00-", "cc-", 1) + "-\x1b[31m",
    ],
)
def test_other_texts_are_no_traces(task: Task[..., Any], text: Any) -> None:
    with pytest.raises(ConfigError, match="trace = "):
        task.using(trace=text)
    with pytest.raises(ConfigError, match="trace = "):
        check_stored(JobOptions(trace=text))
