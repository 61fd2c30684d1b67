"""One pass over the commands on PostgreSQL: they ask no store which one it is."""

from __future__ import annotations

import signal

import pytest

from cli.shell import Shell, interrupt
from cli.test_dev import wait_for
from headrace.model.job import JobState
from servers.postgres import PostgresServer


@pytest.fixture
def store_name() -> str:
    return "postgres"


def test_a_fresh_database_is_migrated_when_told_to(shell: Shell, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    assert "headrace migrate" in shell.error("stats", "--url", url, code=1, url=False)
    assert shell.json("migrate", "--url", url, url=False)["steps"]
    assert shell.json("migrate", "--url", url, url=False)["steps"] == []
    assert shell.json("stats", "--url", url, url=False)["items"] == []
    assert url.split(":")[2].split("@")[0] not in shell("migrate", "--url", url, url=False).output


def test_looking_and_moving(shell: Shell) -> None:
    shell.put(3, queue="mail", tenant="acme")
    (id,) = shell.dead(1, queue="sad")
    assert shell.states() == {"ready": 3, "dead": 1}
    assert shell.json("jobs", "show", str(id))["history"][0]["message"] == "no money"
    shell("queues", "pause", "mail")
    assert shell.json("queues", "list")["total"]["ready"] == 3
    assert shell("dead", "replay", "--everything", "--yes").stdout == "replayed 1 job\n"
    shell.end("sad", JobState.DEAD)
    assert len(shell.json("dead", "discard", "--everything", "--yes", "--reason", "r")["discarded"]) == 1
    assert shell("jobs", "cancel", "--queue", "mail").stdout == "cancelled 3\n"
    shell("prune")
    assert shell.json("doctor")["ok"]


def test_worker(shell: Shell) -> None:
    shell("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app")
    process = shell.process("worker", "shop:app")
    wait_for(shell, "done", 1)
    _, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, errors
