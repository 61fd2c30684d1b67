"""The README and the start page, followed line by line in an empty folder, as a new user does.

Every Python block is a file, which `python` runs as it is printed. Every command runs in the user's shell, and prints what
the page says. A worker is started in another terminal and stays until the page ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from docs.test_docs import FILE_NAME, FIRST_PAGES, Block, blocks, name_of

PATIENCE = 120


class User:
    """A new user: an empty folder, a shell, and other terminals."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        unknown = ("HEADRACE_", "PYTHONPATH", "DATABASE_URL")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(unknown)}
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"
        if url is not None:
            self.env["HEADRACE_URL"] = url
        self.terminals: list[subprocess.Popen[bytes]] = []

    def run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run_in_another_terminal(self, line: str) -> None:
        """Start a worker, and wait until it is there."""
        process = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.env)
        self.terminals.append(process)
        give_up = time.monotonic() + PATIENCE
        while not json.loads(self.run("headrace workers --json"))["items"]:
            assert process.poll() is None, line
            assert time.monotonic() < give_up, line

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            if block.language == "python":
                self._write_and_run(block, page)
            elif block.language == "console":
                self._type(block.text.splitlines())

    def _write_and_run(self, block: Block, page: Path) -> None:
        name = FILE_NAME.match(block.text.partition("\n")[0])
        assert name, f"{name_of(page)}:{block.line}: the block does not begin with the name of its file"
        (self.folder / name[1]).write_text(block.text)
        self.run(f"python {name[1]}")

    def _type(self, lines: Sequence[str]) -> None:
        printed = ""
        for line in lines:
            if line.startswith("$ headrace worker"):
                self.run_in_another_terminal(line[2:])
            elif line.startswith("$ "):
                printed = self.run(line[2:])
            else:
                assert line in printed.splitlines(), f"the page says {line!r}, the command {printed!r}"

    def close(self) -> None:
        for process in self.terminals:
            process.send_signal(signal.SIGTERM)
        for process in self.terminals:
            assert process.wait(PATIENCE) == 0


@contextlib.contextmanager
def new_user(folder: Path, url: str | None) -> Generator[User]:
    folder.mkdir()
    user = User(folder, url)
    try:
        yield user
    finally:
        user.close()


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize("page", FIRST_PAGES, ids=name_of)
def test_a_new_user_follows_the_page(page: Path, tmp_path: Path) -> None:
    with new_user(tmp_path / "new", None) as user:
        user.follow(page)
        assert (user.folder / "headrace.db").exists()


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize("page", FIRST_PAGES, ids=name_of)
def test_a_new_user_follows_the_page_on_postgres(page: Path, tmp_path: Path, postgres_url: str) -> None:
    with new_user(tmp_path / "new", postgres_url) as user:
        user.run("headrace migrate")
        user.follow(page)
        assert not (user.folder / "headrace.db").exists()
