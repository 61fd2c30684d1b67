"""Where the tests write: to memory where there is enough of it, otherwise to the system's temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_folder import ENOUGH, FOLDER, use_memory

ROOT = "PYTEST_DEBUG_TEMPROOT"


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes are enough, which any folder has."""
    assert ENOUGH > 2048 * 1024
    monkeypatch.setattr("memory_folder.ENOUGH", 2048 * 1024)


def meminfo(tmp_path: Path, kilobytes: int) -> Path:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal:       99999999 kB\nMemAvailable:   {kilobytes} kB\n")
    return file


def test_memory_is_used_where_there_is_enough(tmp_path: Path):
    environment: dict[str, str] = {}
    use_memory(environment, tmp_path, meminfo(tmp_path, 2048), [])
    assert environment == {FOLDER: str(tmp_path), ROOT: str(tmp_path)}


@pytest.mark.parametrize("missing", ["memory", "folder", "figures", "container"])
def test_the_disk_is_used_otherwise(tmp_path: Path, missing: str):
    environment: dict[str, str] = {}
    figures = meminfo(tmp_path, 2047 if missing == "memory" else 2048)
    shared = tmp_path / "none" if missing == "folder" else tmp_path
    limit = tmp_path / "memory.max"
    limit.write_text(f"{2048 * 1024 - (missing == 'container')}\n")
    use_memory(environment, shared, tmp_path / "none" if missing == "figures" else figures, [limit])
    assert environment == {FOLDER: ""}


@pytest.mark.parametrize("limit", ["max", "2097152"])
def test_a_container_with_enough_memory_uses_it(tmp_path: Path, limit: str):
    environment: dict[str, str] = {}
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    use_memory(environment, tmp_path, meminfo(tmp_path, 2048), [tmp_path / "memory.max", tmp_path / "none"])
    assert environment[FOLDER] == str(tmp_path)


@pytest.mark.parametrize("chosen", ["", "/srv/data"])
def test_the_choice_of_the_developer_counts(tmp_path: Path, chosen: str):
    environment = {FOLDER: chosen}
    use_memory(environment, tmp_path, meminfo(tmp_path, 10**9))
    assert environment == ({FOLDER: chosen, ROOT: chosen} if chosen else {FOLDER: ""})
