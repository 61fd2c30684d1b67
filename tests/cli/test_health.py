"""`headrace worker --health-port` with real processes."""

from __future__ import annotations

import re
import signal
import subprocess
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.shell import Shell, interrupt

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

GATED = """
import asyncio
from pathlib import Path
from headrace import Headrace

app = Headrace()


@app.task(name="gated")
async def gated() -> None:
    Path("started").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
"""


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"health endpoint: (http://\S+)/livez", line):
            return found[1]
    raise AssertionError("no address")


def look(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until_code(url: str, code: int) -> str:
    give_up = time.monotonic() + 60
    while (answer := look(url))[0] != code:
        assert time.monotonic() < give_up, answer
        time.sleep(0.02)
    return answer[1]


def value(metrics: str, name: str) -> int:
    [line] = [line for line in metrics.splitlines() if line.startswith(f"{name} ")]
    return int(line.rpartition(" ")[2])


def test_probes_and_metrics_of_two_processes(shell: Shell) -> None:
    (shell.folder / "gated.py").write_text(textwrap.dedent(GATED))
    process = shell.process("worker", "gated:app", "--processes", "2", "--health-port", "0")
    base = address_of(process)
    assert look(f"{base}/livez") == (200, '{"status":"ok"}')
    until_code(f"{base}/readyz", 200)
    shell("enqueue", "gated", "--raw")
    give_up = time.monotonic() + 60
    while value(metrics := look(f"{base}/metrics")[1], 'headrace_worker_running{executor="async"}') != 1:
        assert time.monotonic() < give_up, metrics
    assert value(metrics, "headrace_worker_claimed_total") == 1
    assert value(metrics, 'headrace_worker_store_calls_total{call="heartbeat"}') >= 1
    # The process drains, and still answers.
    process.send_signal(signal.SIGTERM)
    assert "draining" in until_code(f"{base}/readyz", 503)
    assert look(f"{base}/livez")[0] == 200
    Path(shell.folder / "gate").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_a_quiet_worker_is_not_ready(shell: Shell) -> None:
    process = shell.process("worker", "shop:app", "--health-port", "0")
    base = address_of(process)
    until_code(f"{base}/readyz", 200)
    process.send_signal(signal.SIGTSTP)
    assert "claims nothing more" in until_code(f"{base}/readyz", 503)
    _, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, errors


def test_a_worker_whose_hook_has_not_ended_is_not_ready(shell: Shell) -> None:
    (shell.folder / "slow.py").write_text(
        "import asyncio\nfrom pathlib import Path\nfrom headrace import Headrace\napp = Headrace()\n"
        "@app.on_start\nasync def wait():\n    while not Path('gate').exists():\n        await asyncio.sleep(0.01)\n"
        "@app.task\nasync def work() -> None: ...\n"
    )
    process = shell.process("worker", "slow:app", "--health-port", "0")
    base = address_of(process)
    assert "does not serve its queues yet" in until_code(f"{base}/readyz", 503)
    assert look(f"{base}/livez")[0] == 200
    Path(shell.folder / "gate").touch()
    until_code(f"{base}/readyz", 200)
    interrupt(process, signal.SIGTERM)


def test_a_taken_port(shell: Shell) -> None:
    first = shell.process("worker", "shop:app", "--health-port", "0")
    port = address_of(first).rpartition(":")[2]
    second = shell.process("worker", "shop:app", "--health-port", port)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 78
    assert f"error: the health endpoint cannot listen on 127.0.0.1:{port}" in errors
    interrupt(first, signal.SIGTERM)
