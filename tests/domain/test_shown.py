"""What people see of a job gives no secret away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest

from headrace import Headrace
from headrace.model.job import Job, JobId, JobState, job_id, new_batch
from headrace.operate import shown as job_view
from headrace.task.codec import JobOptions, encode_options
from headrace.task.codec.redact import MASK


def job(options: bytes | None) -> Job:
    return Job(
        id=JobId(job_id(new_batch(), 0)),
        task="t",
        queue="default",
        priority=0,
        tenant="",
        limits=(),
        state=JobState.READY,
        attempt=0,
        failures=0,
        crashes=0,
        enqueued_at=datetime.now(UTC),
        payload=b"\x92\x90\x80",
        options=options,
    )


def test_of_a_webhook_only_its_host_is_shown():
    options = JobOptions(timeout=3, webhook="https://user:pass@hooks.example.com/secret-path?token=hush")
    shown = job_view.options(job(encode_options(options)))
    assert shown == {"timeout": 3, "webhook": "…//hooks.example.com/…"}


def test_options_that_cannot_be_read_say_so():
    assert job_view.options(job(b"\xff\xff")) == {"unreadable": "2 bytes"}
    assert job_view.options(job(None)) == {}


class Card(msgspec.Struct):
    number: str = msgspec.field(name="cardNumber")
    name: str = "Ada"


class Pair(NamedTuple):
    user: str
    number: str


class Bare(msgspec.Struct, array_like=True):
    number: str


@dataclass
class Nested:
    cards: list[Card]
    pairs: dict[str, Pair]


SECRET = "4111-1111"


def looked_at(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """A job's arguments as they are shown where its task is not known."""
    app = Headrace("memory://")
    task = app.task(name="t", redact=["number", "TOKEN"])(function)
    made = task.job(*args, **kwargs).job
    assert SECRET.encode() in made.payload
    other = msgspec.structs.replace(job(made.options), payload=made.payload)
    assert job_view.options(other) == {}
    assert SECRET not in str(job_view.arguments(task, other))
    return job_view.arguments(None, other)


def plain(order: int, number: str, note: str = "") -> None: ...
def keyword(order: int, *, token: str) -> None: ...
def card(order: int, card: Card) -> None: ...
def pair(order: int, pair: Pair) -> None: ...
def bare(order: int, bare: Bare) -> None: ...
def nested(order: int, nested: Nested) -> None: ...
def loose(order: int, more: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "shown"),
    [
        (plain, (7, SECRET, "hello"), {}, {"args": [7, MASK, "hello"], "kwargs": {}}),
        (plain, (7,), {"number": SECRET}, {"args": [7, MASK], "kwargs": {}}),
        (keyword, (7,), {"token": SECRET}, {"args": [7], "kwargs": {"token": MASK}}),
        (card, (7, Card(SECRET)), {}, {"args": [7, {"cardNumber": MASK, "name": "Ada"}], "kwargs": {}}),
        (pair, (7, Pair("ada", SECRET)), {}, {"args": [7, MASK], "kwargs": {}}),
        (bare, (7, Bare(SECRET)), {}, {"args": [7, MASK], "kwargs": {}}),
        (nested, (7, Nested([Card(SECRET)], {"a": Pair("ada", SECRET)})), {}, {"args": [7, MASK], "kwargs": {}}),
        (loose, (7, {"a": [{"Number": SECRET}]}), {}, {"args": [7, {"a": [{"Number": MASK}]}], "kwargs": {}}),
    ],
)
def test_secrets_are_masked_where_the_task_is_not_known(function, args, kwargs, shown):
    assert looked_at(function, *args, **kwargs) == shown


def test_a_job_with_options_of_its_own_says_what_to_mask_too():
    app = Headrace("memory://")
    task = app.task(name="t", redact=["number"])(plain)
    made = task.using(timeout="3s").job(7, SECRET).job
    other = msgspec.structs.replace(job(made.options), payload=made.payload)
    assert job_view.arguments(None, other)["args"] == [7, MASK]
    assert job_view.options(other) == {"timeout": 3}


def test_a_task_that_redacts_nothing_stores_no_options():
    assert Headrace("memory://").task(name="t")(plain).job(7, "x").job.options is None


def test_what_a_job_says_is_masked_also_when_its_task_has_forgotten_it():
    old = Headrace("memory://").task(name="t", redact=["number"])(plain).job(7, SECRET).job
    new = Headrace("memory://").task(name="t")(plain)
    other = msgspec.structs.replace(job(old.options), payload=old.payload)
    assert job_view.arguments(new, other)["args"] == [7, MASK]


def test_arguments_are_not_shown_where_what_to_mask_cannot_be_read():
    shown = job_view.arguments(None, job(b"\xff\xff"))
    assert (shown["args"], shown["kwargs"]) == ([], {})
    assert "not shown" in shown["problem"]
