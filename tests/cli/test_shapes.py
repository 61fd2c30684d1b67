"""Every command that lists answers the same JSON shape: the items, and where the next page begins."""

import pytest

from cli.shell import Shell

LISTS = (
    ("jobs", "list"),
    ("dead", "list"),
    ("dead", "list", "--group"),
    ("queues", "list"),
    ("stats",),
    ("limits", "list"),
    ("pauses",),
    ("schedules", "list"),
    ("workers",),
    ("tokens", "list"),
    ("audit",),
)


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_lists_have_one_shape(shell: Shell, command: tuple[str, ...]) -> None:
    empty = shell.json(*command)
    assert (empty["items"], empty["next"]) == ([], None)


def test_a_move_of_several_jobs_answers_a_list(shell: Shell) -> None:
    ids = [str(id) for id in shell.put(2)]
    moved = shell.json("jobs", "cancel", *ids)
    assert moved == {"items": [{"id": id, "answer": "cancelled"} for id in ids], "next": None}
