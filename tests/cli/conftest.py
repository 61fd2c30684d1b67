"""Fixtures of the command line's tests: a folder with an app and a store."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import APP, Shell


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    """SQLite unless a module says otherwise: the commands ask no store which one it is."""
    return str(request.param)


@pytest.fixture
def shell(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "shop.py").write_text(textwrap.dedent(APP))
    monkeypatch.chdir(folder)
    for name in list(os.environ):
        if name.startswith("HEADRACE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_URL", store_url)
    modules, path = set(sys.modules), list(sys.path)
    yield Shell(folder, store_url)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
