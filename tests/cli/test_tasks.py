"""`headrace tasks`, short flags, and help that needs no extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.shell import Shell, interrupt
from cli.terminal import on_terminal

APP = """
from datetime import timedelta

from headrace import Headrace, Limit, Retry

app = Headrace()


@app.task(name="billing.charge", queue="billing", retry=Retry(max_attempts=8, base="2s", cap="1h"), timeout="2m",
          limits=[Limit("bank", rate="90/s")])
async def charge(order: int) -> None:
    '''Charge an order.

    Twice at most.
    '''


@app.task(name="images.resize")
def resize(image: int = 1) -> None: ...


@app.task(name="reports.build", executor="process", retry=Retry(max_attempts=1))
def build() -> None: ...


app.schedule("nightly", cron="0 3 * * *", tz="Europe/Rome", job=resize.job())
app.schedule("often", every="15m", job=resize.job())
"""


@pytest.fixture
def store(shell: Shell) -> Shell:
    (shell.folder / "store.py").write_text(APP)
    return shell


def test_tasks(store: Shell) -> None:
    found = store.json("tasks", "store")
    assert found["next"] is None
    charge, resize, build = found["items"]
    assert charge == {
        "name": "billing.charge",
        "does": "Charge an order.",
        "queue": "billing",
        "priority": 0,
        "kind": "async",
        "timeout": "2m",
        "max_attempts": 8,
        "retry_base": "2s",
        "retry_cap": "1h",
        "limits": ["bank"],
        "schedules": [],
    }
    assert (resize["kind"], build["kind"]) == ("thread", "process")
    assert resize["schedules"] == [
        {"name": "nightly", "rule": "0 3 * * * Europe/Rome"},
        {"name": "often", "rule": "every 15m"},
    ]


def test_tasks_as_a_table(store: Shell) -> None:
    lines = store("tasks", "-A", "store:app").stdout.splitlines()
    assert lines[0].split() == ["task", "queue", "kind", "retry", "limits", "schedule"]
    assert lines[1].split("  ")[0] == "billing.charge"
    assert "8 attempts, 2s to 1h" in lines[1]
    narrow = on_terminal(store.folder, store.url, "tasks", "store")
    assert max(len(line) for line in narrow) <= 80
    assert any("images.resize" in line and "thread" in line for line in narrow)


def test_tasks_read_no_store(store: Shell) -> None:
    url = "postgresql://127.0.0.1:1/nowhere"
    assert len(store.json("tasks", "store", "--url", url, url=False)["items"]) == 3


def test_tasks_need_an_app(shell: Shell) -> None:
    assert "no app is named" in shell.error("tasks", code=78)
    assert "APP or --app, not both" in shell.error("tasks", "shop", "-A", "shop", code=2)


def test_the_short_flags_of_other_queues(shell: Shell) -> None:
    worker = shell.process("worker", "-A", "shop", "-Q", "billing,default", "-c", "3", "-l", "info")
    while not (found := shell.json("workers")["items"]):
        assert worker.poll() is None
    interrupt(worker)
    assert worker.returncode == 0
    assert (found[0]["slots"], sorted(found[0]["queues"])) == (3, ["billing", "default"])


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"starlette", "uvicorn", "httptools", "psycopg", "psycopg_pool", "redis", "uvloop", "django", "flask"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import click
from headrace.cli.root import COMMANDS, root

def walk(command, path):
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from walk(command.get_command(click.Context(command), name), [*path, name])

for path in walk(root, []):
    try:
        root([*path, "--help"])
    except SystemExit as end:
        assert end.code == 0, path
"""


def test_help_needs_no_extra(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "headrace tokens create" in done.stdout
