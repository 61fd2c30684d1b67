"""`headrace archive`: moves old ended jobs into files, and says what it did."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from archive.rows import files_in, rows_in
from cli.shell import Shell


def test_archive(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "cold"
    shell.put(3, queue="mail")
    shell.put(2, queue="other")
    shell("jobs", "cancel", "--everything", "--yes")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert shell.json("archive", "--to", str(folder), "--before", "1h") == {"jobs": 0, "kept": 0, "files": []}
    result = shell("archive", "--to", str(folder), "--before", later, "--queue", "mail")
    assert result.stdout == f"moved 3 jobs to {folder} in 1 new file\n"
    assert {row["queue"] for row in rows_in(folder)} == {"mail"}
    document = shell.json("archive", "--to", str(folder), "--before", later)
    assert (document["jobs"], document["kept"]) == (2, 0)
    assert len(document["files"]) == 1
    assert len(files_in(folder)) == 2
    assert shell.json("jobs", "list")["items"] == []
    actions = [entry["action"] for entry in shell.json("audit")["items"]]
    assert actions.count("jobs.archive") == 2


def test_dead_letters_stay_until_shortly_before_they_are_dropped(shell: Shell, tmp_path: Path) -> None:
    [id] = shell.dead()
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert shell.json("archive", "--to", str(tmp_path / "cold"), "--before", later)["jobs"] == 0
    assert shell.json("archive", "--to", str(tmp_path / "cold"), "--dead", later)["jobs"] == 1
    [row] = rows_in(tmp_path / "cold")
    assert row["id"] == str(id)


def test_a_remark_if_workers_drop_jobs_before_they_are_archived(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("archive", "--to", str(tmp_path / "cold")).stderr == ""
    monkeypatch.setenv("HEADRACE_KEEP_DONE", "1d")
    assert "keep_done is 1d" in shell("archive", "--to", str(tmp_path / "cold")).stderr
    assert shell("archive", "--to", str(tmp_path / "cold"), "--before", "1h").stderr == ""


def test_an_archive_needs_a_folder(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--to" in shell.error("archive", code=2)
    monkeypatch.setattr("headrace.operate.archive.move.find_spec", lambda _: None)
    assert "pip install 'headrace[archive]'" in shell.error("archive", "--to", "cold", "--before", "1h", code=78)
