"""The order of a parallel run: long files first, nothing lost, the parts as long as those that the scheduler makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

import pytest
from xdist.scheduler.worksteal import WorkStealingScheduling

from longest_first import LONG, longest_first

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Item:
    path: PurePath
    number: int


def items(files: dict[str, int]) -> list[Item]:
    return [Item(TESTS / name, number) for name, count in files.items() for number in range(count)]


@pytest.mark.parametrize("name", LONG)
def test_the_long_files_exist(name: str):
    assert (TESTS / name).is_file()


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_no_test_is_lost_and_files_keep_their_order(count: int, processes: int):
    given = items({"a/test_first.py": count, **dict.fromkeys(LONG, 3), "b/test_last.py": count})
    ordered = longest_first(given, processes)
    assert sorted(ordered, key=str) == sorted(given, key=str)
    for path in {item.path for item in given}:
        assert [item for item in ordered if item.path == path] == [item for item in given if item.path == path]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_each_process_begins_with_its_share(processes: int):
    ordered = longest_first(items({"a/test_first.py": 1001, **dict.fromkeys(LONG, 5)}), processes)
    parts = cut(len(ordered), processes)
    firsts = [ordered[start].path.relative_to(TESTS).as_posix() for start in parts]
    assert sorted(firsts, key=lambda name: -LONG[name]) == list(LONG)[:processes]
    for start, end in zip(parts, [*parts[1:], len(ordered)], strict=True):
        is_long = [item.path.relative_to(TESTS).as_posix() in LONG for item in ordered[start:end]]
        assert is_long == sorted(is_long, reverse=True)


def cut(count: int, processes: int) -> list[int]:
    """Where the scheduler of the installed pytest-xdist begins each process's part."""
    sent: list[list[int]] = []

    class Node:
        shutting_down = False

        def send_runtest_some(self, indices: list[int]) -> None:
            sent.append(indices)

    scheduler = WorkStealingScheduling.__new__(WorkStealingScheduling)
    scheduler.pending = list(range(count))
    scheduler.node2pending = {Node(): [] for _ in range(processes)}  # type: ignore[dict-item]
    scheduler.steal_requested_from_node = None
    scheduler.check_schedule()
    return [indices[0] for indices in sent]
