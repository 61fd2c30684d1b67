"""`headrace dev` and `headrace worker` as processes of their own: they work, drain, exit 0, and lose nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.shell import Shell, interrupt
from headrace import Headrace
from headrace.cli import dev
from headrace.store.memory import MemoryStore

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
EXAMPLES = Path(__file__).parents[2] / "examples"


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The first line with this text; fails when the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    _, errors = process.communicate(timeout=60)
    raise AssertionError(f"the process ended without {text!r}: {errors}")


def wait_for(shell: Shell, state: str, count: int) -> None:
    """Until so many jobs are in that state."""
    deadline = time.monotonic() + 60
    while shell.states().get(state, 0) < count:
        assert time.monotonic() < deadline, shell.states()


@pytest.fixture
def demo(shell: Shell) -> Shell:
    (shell.folder / "examples").mkdir()
    shutil.copy(EXAMPLES / "demo.py", shell.folder / "examples" / "demo.py")
    return shell


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_dev_runs_the_demo_and_loses_nothing(demo: Shell, how: signal.Signals) -> None:
    process = demo.process("dev", "examples.demo:app", "--with", "examples.demo:produce", "--every", "200ms")
    line = read_until(process, "dead 1")
    assert "enqueued" in line
    _, errors = interrupt(process, how)
    assert process.returncode == 0, errors
    assert "draining: " in errors
    assert "handed back" in errors

    total = demo.json("stats")["total"]
    states = demo.states()
    # Every job that was ever enqueued is there, in a state that says what became of it.
    assert sum(states.values()) == total["enqueued_total"] > 0
    assert total["running"] == states.get("running", 0) == 0
    assert states["done"] == total["done_total"] > 0
    assert states["dead"] == total["dead"] >= 1
    assert states.get("ready", 0) == total["ready"]
    assert states.get("scheduled", 0) == total["scheduled"]
    assert demo.json("workers")["items"] == []
    assert "look again: headrace jobs list, headrace dead list" in errors


def test_the_demo_shows_limits_tenants_a_schedule_and_a_pause(demo: Shell) -> None:
    process = demo.process("dev", "examples.demo:app", "--with", "examples.demo:produce", "--no-server")
    read_until(process, "done")
    while not (paused := demo.json("pauses")["items"]):
        assert process.poll() is None
    assert [(each["kind"], each["name"], each["by"]) for each in paused] == [("tenant", "initech", "demo")]
    assert {each["name"] for each in demo.json("limits", "list")["items"]} == {"bank", "shop"}
    assert [each["name"] for each in demo.json("schedules", "list")["items"]] == ["digest"]
    while not any(job["tenant"] for job in demo.json("jobs", "list")["items"]):
        assert process.poll() is None
    interrupt(process)
    assert process.returncode == 0


def test_dev_hands_back_at_once_when_told_twice(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text(
        "import asyncio\nfrom headrace import Headrace\napp = Headrace()\n"
        "@app.task(name='slow')\nasync def slow() -> None:\n    await asyncio.sleep(600)\n"
    )
    shell("enqueue", "slow", "--raw")
    process = shell.process("dev", "slow:app", "--every", "100ms")
    read_until(process, "running 1")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "draining: 1 job running" not in process.stderr.readline():
        pass
    _, errors = interrupt(process)
    assert process.returncode == 0, errors
    assert "1 job handed back" in errors
    (job,) = shell.json("jobs", "list")["items"]
    assert (job["state"], job["failures"]) == ("ready", 0)


@pytest.mark.parametrize("command", ["dev", "worker"])
def test_a_lease_that_ends_before_the_next_heartbeat_is_refused(shell: Shell, command: str) -> None:
    process = shell.process(command, "shop:app", HEADRACE_LEASE="1s", HEADRACE_HEARTBEAT="5s")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 78
    assert "set lease to at least 15s, or heartbeat lower" in errors


async def test_dev_says_what_its_server_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "find_spec", lambda name: None if name == "httptools" else object())
    app = Headrace("memory://")
    async with dev._serving(app, MemoryStore(), 0) as address:
        assert address is None
    assert "no server, which needs httptools: pip install 'headrace[server]'" in capsys.readouterr().err


def test_dev_ends_when_a_helper_fails(shell: Shell) -> None:
    (shell.folder / "helper.py").write_text("async def go() -> None:\n    raise RuntimeError('no more')\n")
    process = shell.process("dev", "shop:app", "--with", "helper:go")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: --with: RuntimeError: no more" in errors


@pytest.mark.parametrize(("function", "says"), [("shop:nope", "has no 'nope'"), ("shop:app", "async def")])
def test_a_helper_that_is_none(shell: Shell, function: str, says: str) -> None:
    assert says in shell.error("dev", "shop:app", "--with", function, code=78)


@pytest.mark.parametrize("command", ["dev", "worker"])
def test_they_need_an_app(shell: Shell, command: str) -> None:
    assert "no app is named" in shell.error(command, code=78)


@pytest.mark.parametrize("command", ["dev", "worker"])
def test_an_app_with_a_store_of_its_own_is_not_split(shell: Shell, command: str) -> None:
    (shell.folder / "fixed.py").write_text("from headrace import Headrace\napp = Headrace('sqlite:///mine.db')\n")
    assert "names its own store" in shell.error(command, "fixed:app", code=78)


def test_worker(shell: Shell) -> None:
    shell("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app")
    shell("enqueue", "shop.fail", '"broke"', "--app", "shop:app")
    process = shell.process(
        "worker", "shop:app", "--processes", "2", "--concurrency", "5", "--lease", "10s", "--heartbeat", "1s"
    )
    wait_for(shell, "done", 1)
    wait_for(shell, "dead", 1)
    deadline = time.monotonic() + 60
    while len(workers := shell.json("workers")["items"]) < 2:
        assert time.monotonic() < deadline, workers
    assert [worker["slots"] for worker in workers] == [5, 5]
    assert workers[0]["queues"] == ["billing", "default"]
    assert "billing" in shell("workers").stdout
    _, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, errors
    assert shell.states() == {"done": 1, "dead": 1}
    assert shell.json("workers")["items"] == []
    (dead,) = shell.json("dead", "list")["items"]
    assert shell.json("dead", "show", dead["id"])["history"][0]["message"] == "broke"
    (done,) = shell.json("jobs", "list", "--state", "done")["items"]
    assert shell.json("jobs", "show", done["id"])["result"] == "acme paid 7"


def test_a_worker_serves_only_the_queues_it_is_told_to(shell: Shell) -> None:
    shell("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app")
    shell("enqueue", "shop.charge", "8", '"acme"', "--queue", "other", "--app", "shop:app")
    process = shell.process("worker", "shop:app", "--queues", "other")
    wait_for(shell, "done", 1)
    interrupt(process, signal.SIGTERM)
    (left,) = shell.json("jobs", "list", "--state", "ready")["items"]
    assert left["queue"] == "billing"


def test_the_hello_example(shell: Shell) -> None:
    shutil.copy(EXAMPLES / "hello.py", shell.folder / "hello.py")
    done = subprocess.run(
        [sys.executable, "hello.py"],
        cwd=shell.folder,
        env={**os.environ, "HEADRACE_URL": shell.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Hello world! Hello world!" in done.stdout, done.stderr
