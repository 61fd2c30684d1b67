"""What commands print on a terminal of 80 columns: whole words, short ids, and columns left out instead of folded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shell import Shell
from cli.terminal import on_terminal
from headrace.cli.columns import Column, fit
from headrace.model.job import JobState
from headrace.model.short_id import shorten


@pytest.fixture
def filled(shell: Shell) -> Shell:
    """Jobs whose names and notes do not fit beside whole ids."""
    shell.put(2, task="mail.newsletter", queue="newsletters")
    shell.dead(1, task="reports.build", queue="reports")
    return shell


def test_a_list_of_jobs_fits_with_whole_names(filled: Shell) -> None:
    lines = on_terminal(filled.folder, filled.url, "jobs", "list")
    assert max(len(line) for line in lines) <= 80
    assert sum("mail.newsletter" in line for line in lines) == 2
    [dead] = [line for line in lines if "reports.build" in line]
    assert "ValueError: no money" in dead


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(filled: Shell, columns: int) -> None:
    for command in (("jobs", "list"), ("dead", "list"), ("stats",), ("audit",)):
        lines = on_terminal(filled.folder, filled.url, *command, columns=columns)
        table = [line for line in lines if "headrace " not in line]
        assert max(len(line) for line in table) <= columns, command


def test_a_list_on_a_terminal_prints_short_ids_that_commands_take(filled: Shell) -> None:
    (id,) = filled.put(1, task="shop.charge", queue="one")
    [line] = [line for line in on_terminal(filled.folder, filled.url, "jobs", "list") if "shop.charge" in line]
    printed = line.split()[0]
    assert printed == shorten(id)
    assert filled.json("jobs", "show", printed)["id"] == str(id)
    assert filled.json("jobs", "explain", printed)["id"] == str(id)
    assert filled.json("jobs", "cancel", printed)["items"] == [{"id": str(id), "answer": "cancelled"}]


def test_a_pipe_gets_whole_ids(filled: Shell) -> None:
    ids = {line.split()[0] for line in filled("jobs", "list").stdout.splitlines()[1:]}
    assert all(len(id) == 36 for id in ids)


def test_short_ids_of_dead_jobs_and_pages(shell: Shell) -> None:
    first, second = shell.dead(2)
    assert shell.json("dead", "show", shorten(second))["id"] == str(second)
    assert [job["id"] for job in shell.json("jobs", "list", "--before", shorten(second))["items"]] == [str(first)]
    assert [job["id"] for job in shell.json("dead", "list", "--before", shorten(second))["items"]] == [str(first)]
    assert shell("dead", "replay", shorten(first)).stdout == "replayed 1 job\n"
    assert shell("dead", "discard", shorten(second), "--reason", "old").stdout == "discarded 1 job\n"


def test_the_list_says_why_a_job_is_dead(shell: Shell) -> None:
    shell.put(1)
    shell.end("default", JobState.DEAD, message="no money")
    assert "ValueError: no money (max_attempts)" in shell("jobs", "list").stdout


def test_columns_are_left_out_before_any_is_folded() -> None:
    columns = [Column("id", 12), Column("task", 30, least=16), Column("attempt", 7), Column("note", 60, least=32)]
    assert fit(columns, 200, ("attempt",)) == {0: 12, 1: 30, 2: 7, 3: 60}
    assert fit(columns, 100, ("attempt",)) == {0: 12, 1: 30, 2: 7, 3: 45}
    assert fit(columns, 70, ("attempt",)) == {0: 12, 1: 22, 3: 32}
    assert fit(columns, 40, ("attempt",)) == {0: 12, 1: 12, 3: 12}


def test_columns_without_text_are_left_out_first() -> None:
    columns = [Column("worker", 12), Column("hindered", 8, empty=True), Column("id", 36)]
    assert fit(columns, 80, ("id",)) == {0: 12, 1: 8, 2: 36}
    assert fit(columns, 52, ("id",)) == {0: 12, 2: 36}
    assert fit(columns, 40, ("id",)) == {0: 12}


def test_the_help_fits(shell: Shell, tmp_path: Path) -> None:
    lines = on_terminal(tmp_path, shell.url, "--help")
    assert max(len(line) for line in lines) <= 80
