"""The text of a traceback is Python's own, also where its frames were formatted before."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.worker import tracebacks


def text_of(error: BaseException) -> str:
    return tracebacks.text_of(error, str(error))


def plain(number: int) -> None:
    raise ValueError(f"bad number {number}")


def two_places(number: int) -> None:
    if number % 2:
        plain(number)
    plain(-number)


def noted(number: int) -> None:
    error = ValueError("noted")
    error.add_note(f"note {number}")
    raise error


def caused(number: int) -> None:
    try:
        plain(number)
    except ValueError as error:
        raise KeyError("outer") from error


def in_handler(number: int) -> None:
    try:
        plain(number)
    except ValueError:
        raise KeyError("outer")  # noqa: B904 - the context is what is shown


def without_context(number: int) -> None:
    try:
        plain(number)
    except ValueError:
        raise KeyError("outer") from None


def recursive(number: int) -> None:
    if number > 12:
        plain(number)
    recursive(number + 1)


def misspelt(number: int) -> None:
    number.bit_lenght()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def grouped(number: int) -> None:
    raise ExceptionGroup("several", [ValueError(f"one {number}"), KeyError("two")])


class OwnError(Exception):
    """Of a module that is not builtins."""


def own(number: int) -> None:
    raise OwnError(number, "two arguments")


def silent(number: int) -> None:
    del number
    raise OwnError


def compiled(number: int) -> None:
    exec(compile(f"def made(): raise ValueError({number})\nmade()", "<made>", "exec"), {})


CASES = [
    plain,
    two_places,
    noted,
    caused,
    in_handler,
    without_context,
    recursive,
    misspelt,
    grouped,
    compiled,
    own,
    silent,
]


def caught(function: Callable[[int], None], number: int) -> BaseException:
    try:
        function(number)
    except Exception as error:  # noqa: BLE001 - of every kind
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_the_text_is_pythons_the_first_time_and_later(function: Callable[[int], None]) -> None:
    for number in (1, 2, 3, 1):
        error = caught(function, number)
        assert text_of(error) == "".join(traceback.format_exception(error))


def test_functions_that_are_alike_are_told_apart_by_their_files() -> None:
    for name in ("first.py", "second.py"):
        names: dict[str, Callable[[int], None]] = {}
        exec(compile("def same(number): raise ValueError(number)", name, "exec"), names)
        assert f'File "{name}", line 1, in same' in text_of(caught(names["same"], 1))


def test_the_workers_own_frames_are_left_out() -> None:
    names: dict[str, Callable[[Callable[[int], None], int], None]] = {}
    own = str(Path(tracebacks.__file__).with_name("made.py"))
    exec(compile("def run(function, number): function(number)", own, "exec"), names)
    with pytest.raises(ValueError, match="bad number") as raised:
        names["run"](plain, 1)
    trace = raised.value.__traceback__
    assert trace is not None
    # The frame of this test comes before the worker's, so it is taken away first.
    text = text_of(raised.value.with_traceback(trace.tb_next))
    assert "made.py" not in text
    assert "in plain" in text


def test_an_error_without_frames() -> None:
    assert tracebacks.text_of(ValueError("raised nowhere"), "raised nowhere") == "ValueError: raised nowhere\n"


def test_more_places_than_are_remembered() -> None:
    source = "def made(number): raise ValueError(number)"
    for number in range(1100):
        names: dict[str, Callable[[int], None]] = {}
        exec(compile(source, f"file-{number}.py", "exec"), names)
        assert f'"file-{number}.py"' in text_of(caught(names["made"], number))
