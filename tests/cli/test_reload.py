"""`headrace dev --reload` with real processes: changes, errors in the app, jobs that run meanwhile, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import psutil
import pytest

from cli.shell import Shell, appears, interrupt
from headrace.cli import reload

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

APP = """
import asyncio
from pathlib import Path
from headrace import Headrace

app = Headrace()


@app.task(name="mark")
async def mark() -> None:
    Path("VERSION").touch()


@app.task(name="gated")
async def gated() -> None:
    Path("started").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
"""


def write(shell: Shell, version: str) -> None:
    (shell.folder / "live.py").write_text(textwrap.dedent(APP).replace("VERSION", version))


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError(f"no {text!r} in {said}")


def start(shell: Shell) -> subprocess.Popen[str]:
    return shell.process("dev", "live:app", "--no-server", "--reload", "--every", "100ms")


def test_a_change_starts_the_new_code_and_an_error_waits_for_the_next(shell: Shell) -> None:
    write(shell, "one")
    process = start(shell)
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "one")
    (shell.folder / "live.py").write_text("this is no Python\n")
    read_until(process, "live.py changed: starting again")
    read_until(process, "SyntaxError")
    read_until(process, "the app ended with exit code 78: waiting for a change")
    write(shell, "two")
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "two")
    _, errors = interrupt(process)
    assert process.returncode == 0, errors
    assert shell.json("workers")["items"] == []


def test_a_running_job_finishes_first(shell: Shell) -> None:
    write(shell, "one")
    shell("enqueue", "gated", "--raw")
    process = start(shell)
    appears(shell.folder / "started")
    write(shell, "two")
    read_until(process, "draining: 1 job running")
    (shell.folder / "gate").touch()
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "two")
    shell.reach({"done": 2})
    assert {job["attempt"] for job in shell.json("jobs", "list")["items"]} == {1}
    interrupt(process, signal.SIGTERM)
    assert process.returncode == 0


def test_the_new_code_runs_although_its_bytecode_looks_current(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions have the same size and the same second."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    source = shell.folder / "live.py"
    write(shell, "one")
    second = source.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(source, ns=(second, second))
    process = start(shell)
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "one")
    changed = shell.folder / "changed"
    changed.write_text(source.read_text().replace('"one"', '"two"'))
    os.utime(changed, ns=(second + 1, second + 1))
    changed.replace(source)
    read_until(process, "live.py changed: starting again")
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "two")
    interrupt(process)
    assert process.returncode == 0


def test_a_job_that_takes_long_is_handed_back(shell: Shell) -> None:
    write(shell, "one")
    shell("enqueue", "gated", "--raw")
    process = start(shell)
    appears(shell.folder / "started")
    write(shell, "two")
    read_until(process, "1 job handed back")
    (shell.folder / "gate").touch()
    shell.reach({"done": 1})
    [job] = shell.json("jobs", "list")["items"]
    assert (job["attempt"], job["failures"]) == (2, 0)
    interrupt(process)
    assert process.returncode == 0


def test_the_child_ends_with_a_killed_reloader(shell: Shell) -> None:
    write(shell, "one")
    process = start(shell)
    shell("enqueue", "mark", "--raw")
    appears(shell.folder / "one")
    [child] = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=60)
    child.wait(60)


def test_no_app(shell: Shell) -> None:
    assert "no app is named" in shell.error("dev", "--reload", code=78)


# ── what is watched ─────────────────────────────────────────────────────────


def test_the_folder_of_a_module_and_of_a_package(shell: Shell) -> None:
    package = shell.folder / "store_front" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    assert reload.folder_of("shop:app") == shell.folder
    assert reload.folder_of("store_front.inner:app") == shell.folder
    assert reload.folder_of("store_front/inner.py:app") == shell.folder
    assert reload.folder_of("nothing_of_that_name:app") == shell.folder
    assert reload.folder_of("click:app").name == "click"


def test_files_that_count(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "in/c.py", ".git/d.py", "venv/e.py", "own/f.py", "__pycache__/g.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "own" / "pyvenv.cfg").touch()
    (tmp_path / "broken.py").symlink_to(tmp_path / "nowhere")
    before = reload.stamps(tmp_path)
    assert {os.path.relpath(path, tmp_path) for path in before} == {"a.py", "in/c.py"}
    (tmp_path / "in" / "c.py").write_text("1")
    after = reload.stamps(tmp_path)
    assert after != before
    assert reload._names(reload._changed(before, after)).endswith("in/c.py")
    assert reload._names(reload._changed({}, after)).endswith("and 1 more")
    assert not reload.stamps(tmp_path / "gone")
