"""Throw-away servers: they start wherever the checkout lies."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from servers.postgres import PostgresServer


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder for temporary files that every user can enter, as /tmp is."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_binaries_under_a_folder_that_others_cannot_enter(
    postgres_server: PostgresServer, tmp_path: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch
):
    """As those of a virtual environment in root's home, or below a `mktemp -d`."""
    home = postgres_server.bin.parent
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / home.parent.name).mkdir()
    (private / home.parent.name / home.name).symlink_to(home)
    for libraries in home.parent.parent.glob(f"{home.parent.name}.libs"):
        (private / libraries.name).symlink_to(libraries)
    monkeypatch.setenv("HEADRACE_TEST_PG_BIN", str(private / home.parent.name / home.name / "bin"))
    monkeypatch.setattr(tempfile, "tempdir", str(reachable))
    with PostgresServer.start() as server:
        assert server.psql("select 1") == "1"


def test_a_named_folder_without_a_server_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise tests that should run on one version would run on another."""
    monkeypatch.setenv("HEADRACE_TEST_PG_BIN", str(tmp_path))
    with pytest.raises(ConfigError, match="it needs initdb, postgres and psql"):
        PostgresServer.start()
