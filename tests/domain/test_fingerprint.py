"""Fingerprints: one bug has one, whatever data, release, line or depth it is met with; other bugs have others."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import FunctionType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model.job import Failure, Job, JobId, JobState
from headrace.policy import fingerprint
from headrace.policy.fingerprint import of_failure, of_job, plain
from headrace.worker.outcome_of import MAX_TRACEBACK, bounded, describe, kind_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SHOP = """
class Declined(Exception):
    pass

def charge(order, card):
    return pay(card, order)

def pay(card, amount):
    if amount == "closed":
        raise Declined(f"shop is closed for {card!r}")
    raise ValueError(f"card {card!r} has no {amount}")

def look_up(orders, order):
    try:
        return orders[order]
    except KeyError as missing:
        raise RuntimeError(f"order {order} is gone") from missing

def convert(order):
    try:
        return int(order)
    except ValueError as bad:
        raise RuntimeError(f"order {order} is gone") from bad

def climb(depth):
    if not depth:
        raise ValueError("top")
    return fall(depth)

def fall(depth):
    return climb(depth - 1)

def several(count):
    errors = []
    for n in range(count):
        try:
            charge(n, str(n))
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup(f"{count} went wrong", errors)
"""


def shop(path: str = "/srv/app/shop/tasks.py", first_line: int = 0) -> dict[str, Callable[..., Any]]:
    """The same code as it would be loaded from somewhere, at some line."""
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(compile("\n" * first_line + SHOP, path, "exec"), names)
    return {name: value for name, value in names.items() if isinstance(value, FunctionType)}


def fail(function: Callable[..., Any], *args: Any) -> Failure:
    """What a worker keeps of the exception."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  # any of them
        message, trace = describe(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
        return Failure(1, kind_of(error), message, bounded(trace, MAX_TRACEBACK), NOW)
    raise AssertionError("it did not fail")


def mark(function: Callable[..., Any], *args: Any) -> str:
    return of_failure(fail(function, *args), "shop.charge").id


values = st.one_of(
    st.text(max_size=40),
    st.integers(),
    st.floats(),
    st.uuids(),
    st.binary(max_size=20),
    st.lists(st.integers(), max_size=5),
)
HERE = shop()


# ── the same bug ─────────────────────────────────────────────────────────────


@given(values, values)
def test_other_data_is_the_same_bug(order: Any, card: Any):
    assert mark(HERE["charge"], order, card) == mark(HERE["charge"], 7, "4242")


@given(st.text())
def test_whatever_a_message_looks_like(text: str):
    """Messages are data: also those of several lines that look like a traceback."""
    forged = 'x\nTraceback:\n  File "/a/b.py", line 3, in f\nKeyError: 1\n' + text.replace(fingerprint._HEADER, "")
    assert mark(HERE["charge"], forged, forged) == mark(HERE["charge"], 7, "4242")


@given(st.integers(0, 400))
def test_other_lines_are_the_same_bug(first: int):
    assert mark(shop(first_line=first)["charge"], 7, "a") == mark(HERE["charge"], 7, "a")


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/src/shop/tasks.py",
        "C:\\apps\\shop\\tasks.py",
        "/opt/venv/lib/python3.13/site-packages/shop/tasks.py",
        "/srv/releases/2026-01-02T10:11/shop/tasks.py",
    ],
)
def test_another_machine_has_the_same_bug(path: str):
    assert mark(shop(path)["charge"], 7, "a") == mark(HERE["charge"], 7, "a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/srv/20260102101112/tasks.py", "/srv/20260203040506/tasks.py"),
        ("/srv/3f2a9c1/tasks.py", "/srv/9be01d7/tasks.py"),
        ("/srv/2026-01-02/tasks.py", "/srv/2026-02-03/tasks.py"),
        ("/srv/1.2.3/tasks.py", "/srv/1.10.0/tasks.py"),
        ("/tmp/tmpab12cd34/tasks.py", "/tmp/tmpzz99yy88/tasks.py"),
        ("<ipython-input-3-0a1b2c3d4e5f>", "<ipython-input-12-5f4e3d2c1b0a>"),
    ],
)
def test_another_release_has_the_same_bug(one: str, other: str):
    assert mark(shop(one)["charge"], 7, "a") == mark(shop(other)["charge"], 7, "a")


@given(st.integers(1, 150), st.integers(1, 150))
def test_depth_does_not_matter(one: int, other: int):
    assert mark(HERE["climb"], one) == mark(HERE["climb"], other)


def test_nor_does_a_traceback_that_was_cut():
    deep, flat = fail(HERE["climb"], 300), fail(HERE["climb"], 3)
    assert "bytes left out" in deep.traceback
    assert of_failure(deep, "t").id == of_failure(flat, "t").id


def test_a_long_message_does_not_hide_the_places():
    long = fail(HERE["charge"], "x\n" * 20_000, "a")
    assert "bytes left out" in long.traceback
    assert of_failure(long, "t").id == mark(HERE["charge"], 7, "a")


@given(st.integers(1, 6), st.integers(1, 6))
def test_a_group_of_more_is_the_same_bug(one: int, other: int):
    assert mark(HERE["several"], one) == mark(HERE["several"], other)


def test_newer_pythons_have_no_frames_of_comprehensions():
    old = 'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n  File "/a/b.py", line 1, in <listcomp>\nE: x\n'
    new = 'Traceback (most recent call last):\n  File "/a/b.py", line 9, in f\n    [g(x) for x in y]\n     ~^^^\nE: y\n'
    assert of_failure(Failure(1, "E", "x", old, NOW), "t").id == of_failure(Failure(1, "E", "y", new, NOW), "t").id


# ── other bugs ───────────────────────────────────────────────────────────────


def test_other_bugs_differ():
    api = [shop(f"/srv/v{version}/api.py")["charge"] for version in (1, 2)]
    marks = [
        mark(HERE["charge"], 7, "a"),
        mark(HERE["charge"], "closed", "a"),  # another exception at the same place
        mark(HERE["pay"], "a", 7),  # another way there
        mark(HERE["look_up"], {}, 7),
        mark(HERE["convert"], "7x"),
        mark(HERE["climb"], 2),
        mark(HERE["several"], 2),
        mark(shop("/srv/app/mall/tasks.py")["charge"], 7, "a"),
        *(mark(function, 7, "a") for function in api),
    ]
    assert len(set(marks)) == len(marks)


def test_the_cause_counts():
    """One message, one kind, one place at the end: what led there differs."""
    template = (
        'Traceback (most recent call last):\n  File "/a/b.py", line 1, in f\n{cause}\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/a/b.py", line 2, in f\nRuntimeError: gone\n'
    )
    one, other = (
        of_failure(Failure(1, "RuntimeError", "gone", template.format(cause=cause), NOW), "t").id
        for cause in ("KeyError: 7", "TimeoutError")
    )
    assert one != other


# ── without a traceback ──────────────────────────────────────────────────────


def bare(kind: str, message: str) -> Failure:
    return Failure(1, kind, message, "", NOW)


@given(st.floats(0.001, 10_000), st.floats(0.001, 10_000))
def test_timeouts_of_one_task_are_one_bug(one: float, other: float):
    marks = [of_failure(bare("timeout", f"longer than {seconds:g} s"), "t").id for seconds in (one, other)]
    assert marks[0] == marks[1]


def test_without_a_place_the_task_and_the_message_tell_bugs_apart():
    killed = "killed by SIGKILL (out of memory, or by hand)"
    marks = {
        of_failure(bare("timeout", "longer than 3 s"), "a").id,
        of_failure(bare("timeout", "longer than 3 s"), "b").id,
        of_failure(bare("worker_lost", killed), "a").id,
        of_failure(bare("worker_lost", "killed by SIGSEGV"), "a").id,
        of_failure(bare("bad_arguments", "args[0]: expected int, got str"), "a").id,
        of_failure(bare("bad_arguments", "args[1]: missing"), "a").id,
    }
    assert len(marks) == 6


def test_headraces_own_frames_are_no_place():
    """Arguments that do not fit fail in headrace itself: one traceback for every task's every mistake."""
    trace = (
        'Traceback (most recent call last):\n  File "/x/headrace/codec/signature.py", line 1, in decode\nBadArguments\n'
    )
    one, other = (
        of_failure(Failure(1, "bad_arguments", "args[0]: expected int", trace, NOW), task).id for task in ("a", "b")
    )
    assert one != other


def test_a_dead_job_without_a_failure():
    def dead(note: str | None, *history: Failure) -> Job:
        return Job(
            id=JobId(UUID(int=1)), task="t", queue="q", priority=0, tenant="", limits=(), state=JobState.DEAD, attempt=1,
            failures=1, crashes=0, enqueued_at=NOW, payload=b"", note=note, history=history,
        )  # fmt: skip

    assert of_job(dead("expired after 3 s")) == of_job(dead("expired after 4 s"))
    assert of_job(dead("expired")).id != of_job(dead(None)).id
    assert of_job(dead(None)).title == "dead in t"
    # It died of its last failure.
    assert of_job(dead("n", bare("A", "x"), bare("B", "y"))) == of_failure(bare("B", "y"), "t")


# ── words ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("order 7 has no 'money'", "order # has no #"),
        ("it can't and won't", "it can't and won't"),
        ("\"it's\" or 'say \\'x\\'' end", "# or # end"),
        ("job f8ac4ffa-9017-47ae-8aa1-8eaa1ad1df57 at 0x7f12ab: -1.5e-9, nan", "job # at #: #, #"),
        ("commit 3f2a9c17 of decade", "commit # of decade"),
        ("2026-01-02 10:11:12.5", "#-#-# #"),
        ("b'\\x00' and `x`  and\n“y”", "# and # and #"),
        ("", ""),
    ],
)
def test_messages_lose_their_values(message: str, expected: str):
    assert plain(message) == expected


@given(st.text(max_size=3000), st.text(max_size=3000), st.text(max_size=3000))
def test_any_text_will_do(kind: str, message: str, trace: str):
    found = of_failure(Failure(1, kind, message, trace, NOW), "t")
    assert re.fullmatch("[0-9a-f]{12}", found.id)
    assert len(found.title) <= 160
    assert found == of_failure(Failure(9, kind, message, trace, datetime.now(UTC), "other"), "t")


def test_a_title_says_what_and_where():
    assert (
        of_failure(fail(HERE["charge"], 7, "4242"), "t").title == "ValueError: card # has no # in pay (shop/tasks.py)"
    )
    assert (
        of_failure(bare("timeout", "longer than 3 s"), "shop.charge").title == "timeout: longer than # s in shop.charge"
    )


def test_the_title_prefers_the_users_own_code():
    trace = (
        'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 1, in charge\n'
        '  File "/v/lib/python3.11/site-packages/httpx2/_client.py", line 2, in send\nhttpx.ReadTimeout\n'
    )
    found = of_failure(Failure(1, "httpx2.ReadTimeout", "", trace, NOW), "t")
    assert found.title == "httpx2.ReadTimeout in charge (shop/tasks.py)"


def test_a_fingerprint_as_typed():
    assert fingerprint.check(" 0123456789AB ") == "0123456789ab"
    with pytest.raises(ConfigError, match="12 hex digits"):
        fingerprint.check("12")


def test_it_stays_what_it_is():
    """Fingerprints end up in tickets and scripts: a change of the rules must be on purpose."""
    trace = "".join(traceback.format_list([traceback.FrameSummary("/srv/shop/tasks.py", 3, "charge", line="pay()")]))
    failure = Failure(1, "ValueError", "no", f"Traceback (most recent call last):\n{trace}ValueError: no\n", NOW)
    assert of_failure(failure, "t").id == "2b0b9f1f6cad"
