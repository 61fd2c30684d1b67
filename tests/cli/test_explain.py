"""`headrace jobs explain`: one sentence for people, one document for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from cli.shell import Shell
from headrace.model.job import JobState
from headrace.store.audit import whoami


def test_a_waiting_job(shell: Shell) -> None:
    (first, second) = shell.put(2, queue="billing")
    assert shell("jobs", "explain", str(second)).stdout == (
        "no live worker serves queue billing: start one with: headrace worker APP --queues billing\n"
    )
    shell("queues", "pause", "billing")
    sentence = shell("jobs", "explain", str(first)).stdout
    assert sentence.startswith(f"queue billing is paused by {whoami()} since ")
    assert sentence.endswith("; to let it go on: headrace queues resume billing\n")
    found = shell.json("jobs", "explain", str(second))
    assert {name: found[name] for name in ("id", "task", "queue", "state", "reason", "until")} == {
        "id": str(second),
        "task": "shop.charge",
        "queue": "billing",
        "state": "ready",
        "reason": "paused",
        "until": None,
    }
    assert (found["details"]["ahead_in_lane"], found["details"]["paused_by"]) == (1, whoami())
    shell("queues", "resume", "billing")
    assert shell.json("jobs", "explain", str(second))["reason"] == "no_worker"


def test_a_scheduled_job(shell: Shell) -> None:
    id = shell.json("enqueue", "shop.charge", "7", '"acme"', "--delay", "1h", "--app", "shop:app")["id"]
    found = shell.json("jobs", "explain", id)
    assert (found["reason"], found["state"]) == ("scheduled", "scheduled")
    assert datetime.fromisoformat(found["until"]) > datetime.now(UTC)


def test_a_dead_job(shell: Shell) -> None:
    (id,) = shell.dead(1)
    sentence = shell("jobs", "explain", str(id), "--app", "shop:app").stdout
    assert "(max_attempts); the last: builtins.ValueError: no money" in sentence
    assert f"headrace jobs retry {id}" in sentence
    assert shell.json("jobs", "explain", str(id))["details"]["last_failure"]["message"] == "no money"


def test_nothing_from_a_store_moves_the_cursor(shell: Shell) -> None:
    (id,) = shell.put(1)
    shell.end("default", JobState.DEAD, message="\x1b[2Jgone\r\n\x85")
    assert "\x1b" not in shell("jobs", "explain", str(id)).stdout


def test_no_job(shell: Shell) -> None:
    assert "no job" in shell.error("jobs", "explain", str(uuid4()), code=1)
    assert "is not a job id" in shell.error("jobs", "explain", "7", code=2)
