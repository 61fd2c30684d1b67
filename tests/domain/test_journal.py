"""The journal of an attempt: which finished step answers which call."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model.step import MAX_JOURNAL, MAX_STEP_NAME, MAX_STEP_VALUE, MAX_STEPS, Step
from headrace.task.journal import Journal, StepChanged, StepTooLarge, digest_of, name_of

AT = datetime(2026, 1, 1, tzinfo=UTC)

Call = tuple[str, int]
"""The name of a step and its argument."""
calls = st.lists(st.tuples(st.sampled_from(["charge", "mail"]), st.integers(0, 3)), max_size=8)


def run(journal: Journal, wanted: list[Call], until: int) -> tuple[list[str], list[Step]]:
    """Make so many of these calls one after the other: the value of each, and the steps that ran."""
    values: list[str] = []
    ran: list[Step] = []
    for name, argument in wanted[:until]:
        ticket = journal.call(name, digest_of((argument,), {}))
        step = journal.find(ticket)
        if step is None:
            step = journal.finish(ticket, f"{name} {argument}".encode(), AT)
            ran.append(step)
        values.append((step.value or b"").decode())
    return values, ran


def resumed(steps: list[Step]) -> Journal:
    journal = Journal()
    journal.load(steps)
    return journal


@given(calls, st.data())
def test_the_same_code_runs_each_step_once_however_often_it_is_interrupted(wanted: list[Call], data: st.DataObject):
    stored: list[Step] = []
    for _ in range(3):
        values, ran = run(resumed(stored), wanted, data.draw(st.integers(0, len(wanted))))
        stored += ran
        assert values == [f"{name} {argument}" for name, argument in wanted[: len(values)]]
    values, ran = run(resumed(stored), wanted, len(wanted))
    assert values == [f"{name} {argument}" for name, argument in wanted]
    assert len(stored) + len(ran) == len(wanted)


@given(calls, calls)
def test_changed_code_never_gets_the_value_of_another_call(before: list[Call], after: list[Call]):
    _, stored = run(Journal(), before, len(before))
    journal = resumed(stored)
    try:
        values, ran = run(journal, after, len(after))
    except StepChanged:
        return
    assert values == [f"{name} {argument}" for name, argument in after]
    assert len({(step.name, step.number) for step in [*stored, *ran]}) == len(stored) + len(ran), (
        "no number is used twice"
    )


@given(calls, st.randoms())
def test_reordered_code_runs_nothing_again(wanted: list[Call], random: Any):
    _, stored = run(Journal(), wanted, len(wanted))
    other = list(wanted)
    random.shuffle(other)
    assert run(resumed(stored), other, len(other))[1] == []


@given(calls, st.integers(0, 7))
def test_code_without_a_call_that_was_there_runs_nothing_again(wanted: list[Call], gone: int):
    _, stored = run(Journal(), wanted, len(wanted))
    fewer = [call for place, call in enumerate(wanted) if place != gone]
    assert run(resumed(stored), fewer, len(fewer))[1] == []


def test_calls_in_parallel_resume_whichever_of_them_finished():
    journal = Journal()
    tickets = [journal.call("fetch", digest_of((n,), {})) for n in range(3)]
    last = journal.finish(tickets[2], b"2", AT)
    assert run(resumed([last]), [("fetch", 0), ("fetch", 1), ("fetch", 2)], 3)[0] == ["fetch 0", "fetch 1", "2"]


def test_another_argument_at_the_same_place_is_a_change():
    _, stored = run(Journal(), [("charge", 1)], 1)
    with pytest.raises(StepChanged, match=r"call 1 of step charge had other arguments.*step\.using\(key=…\)"):
        run(resumed(stored), [("charge", 2)], 1)


def test_what_cannot_be_stored_does_not_count_as_an_argument():
    assert digest_of((object(), 1), {}) == digest_of((object(), 1), {})
    assert digest_of((object(), 1), {}) != digest_of((object(), 2), {})
    assert digest_of((1,), {}) != digest_of((), {"a": 1}) != digest_of((), {"b": 1})
    assert digest_of(("a", "b"), {}) != digest_of(("ab",), {})
    assert digest_of((), {"a": 1, "b": 2}) == digest_of((), {"b": 2, "a": 1})
    assert digest_of(({"x": 1, "y": {3, 1, 2}},), {}) == digest_of(({"y": {2, 3, 1}, "x": 1},), {})


def test_names():
    class Shop:
        def sell(self) -> None: ...

    assert name_of(Shop().sell) == f"{Shop.__qualname__}.sell"
    assert name_of(functools.partial(Shop.sell, None)) == f"{Shop.__qualname__}.sell"  # type: ignore[arg-type]
    assert name_of(int) == "int"
    assert name_of(Journal()) == "Journal"  # type: ignore[arg-type]


def test_bounds():
    journal = Journal()
    with pytest.raises(ConfigError, match=f"at most {MAX_STEP_NAME} characters"):
        journal.call("x" * (MAX_STEP_NAME + 1), b"")
    ticket = journal.call("large", b"")
    with pytest.raises(StepTooLarge, match="store the data elsewhere"):
        journal.finish(ticket, bytes(MAX_STEP_VALUE + 1), AT)
    full = resumed([Step("s", n, b"", None, AT) for n in range(MAX_STEPS)])
    with pytest.raises(StepTooLarge, match="at most 10,000 steps"):
        full.finish(full.call("more", b""), None, AT)
    heavy = resumed([Step("s", n, b"", bytes(MAX_STEP_VALUE), AT) for n in range(MAX_JOURNAL // MAX_STEP_VALUE)])
    heavy.finish(heavy.call("light", b""), None, AT)
    with pytest.raises(StepTooLarge):
        heavy.finish(heavy.call("more", b""), b"1", AT)
