"""The page of security cases and the tests name the same numbers, in both directions."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "security-cases.md"
ROW = re.compile(r"^\| S(\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
# A number stands in the name of a test (test_s17_…) or in a text (S17). Three digits are a rule of the linter.
NAMED = re.compile(r"(?:(?<=_)s|\bS)(\d{1,2})(?=_|\b)")


def rows() -> dict[int, tuple[str, list[str]]]:
    """The answer and the test files of each case."""
    return {
        int(number): (answer, re.findall(r"`tests/([^`]+)`", files))
        for number, _, answer, files in ROW.findall(PAGE.read_text())
    }


@cache
def named() -> dict[str, set[int]]:
    """The numbers that each test file names."""
    tests = ROOT / "tests"
    found = {str(path.relative_to(tests)): path.read_text() for path in tests.rglob("test_*.py")}
    return {file: {int(number) for number in NAMED.findall(text)} for file, text in found.items()}


def test_numbers_are_sorted_and_stand_once() -> None:
    numbers = [int(number) for number, *_ in ROW.findall(PAGE.read_text())]
    assert len(numbers) > 60
    assert numbers == sorted(set(numbers))
    # Every line of the table was read.
    assert len(re.findall(r"^\| S\d", PAGE.read_text(), re.MULTILINE)) == len(numbers)


def test_every_number_that_tests_name_has_a_row() -> None:
    known = rows().keys()
    assert {file: numbers - known for file, numbers in named().items() if numbers - known} == {}


def test_a_file_that_tests_a_case_is_in_its_row() -> None:
    """A number in the name of a test is a test of that case, unlike one in a text."""
    known = rows()
    for file in named():
        for name in re.findall(r"def (test_\w+)", (ROOT / "tests" / file).read_text()):
            for number in re.findall(r"(?<=_)s(\d{1,2})(?=_|$)", name):
                assert file in known[int(number)][1], f"the row S{number} does not name tests/{file}"


@pytest.mark.parametrize("number", rows(), ids=lambda number: f"S{number}")
def test_a_row_names_tests_that_exist_and_name_it(number: int) -> None:
    answer, files = rows()[number]
    assert bool(files) is not answer.startswith("Not applicable yet"), "a case has a test, or says why it has none"
    for file in files:
        assert file in named(), f"tests/{file} does not exist"
        assert number in named()[file], f"tests/{file} does not name S{number}"
