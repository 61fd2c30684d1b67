"""`headrace workers quiet`, `resume` and `drain` with real worker processes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cli.shell import Shell

pytestmark = pytest.mark.timeout(600)  # on the slowest machine


def workers_when(shell: Shell, count: int, hindered: list[str] | None = None) -> list[dict[str, Any]]:
    """The list of workers, when it has so many, and one of them is hindered so."""
    give_up = time.monotonic() + 120
    while True:
        workers: list[dict[str, Any]] = shell.json("workers")["items"]
        if len(workers) == count and (hindered is None or hindered in [worker["hindered"] for worker in workers]):
            return workers
        assert time.monotonic() < give_up, workers


def test_processes_drain_one_after_the_other_and_are_not_replaced(shell: Shell) -> None:
    process = shell.process("worker", "shop:app", "--processes", "2", "--heartbeat", "200ms")
    first, second = workers_when(shell, 2)
    assert shell("workers", "quiet", first["name"]).stdout.startswith(f"{first['name']} claims nothing more")
    orders = {worker["id"]: worker["order"] for worker in workers_when(shell, 2, ["quiet"])}
    assert orders == {first["id"]: "quiet", second["id"]: None}
    shell("workers", "resume", first["id"])
    workers_when(shell, 2, [])
    shell("workers", "drain", first["id"])
    assert [worker["id"] for worker in workers_when(shell, 1)] == [second["id"]]
    assert process.poll() is None
    shell("workers", "drain", second["id"][:13])
    _, log = process.communicate(timeout=120)
    assert process.returncode == 0
    assert log.count("has drained as an operator ordered, and is not replaced") == 2
    assert "died" not in log


def test_a_worker_that_is_not_there(shell: Shell) -> None:
    answer = shell("workers", "drain", "host:1", code=1)
    assert "no worker host:1 was seen" in answer.stderr
