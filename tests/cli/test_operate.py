"""Queues, workers, stats, migrate, prune and doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shell import Shell, interrupt
from headrace.model.job import JobState
from headrace.model.lane import Lane


def test_queues(shell: Shell) -> None:
    shell.put(2, queue="mail")
    shell.dead(1, queue="sad")
    queues = {queue["queue"]: queue for queue in shell.json("queues", "list")["items"]}
    assert (queues["mail"]["ready"], queues["sad"]["dead"], queues["sad"]["failed_total"]) == (2, 1, 1)
    assert queues["mail"]["oldest_ready_s"] >= 0
    assert shell("queues", "pause", "mail", "later").stdout == "mail: paused\nlater: paused\n"
    assert [q["queue"] for q in shell.json("queues", "list")["items"] if q["paused"]] == ["later", "mail"]
    assert shell.json("queues", "resume", "mail", "later")["items"] == [
        {"kind": "queue", "name": "mail", "paused": False},
        {"kind": "queue", "name": "later", "paused": False},
    ]
    assert not any(queue["paused"] for queue in shell.json("queues", "list")["items"])


def test_events(shell: Shell) -> None:
    assert shell("events", "show", "paid", "42").stdout == "event paid of 42: not signalled; no job waits for it\n"
    assert shell("events", "signal", "paid", "42", "--value", '{"by": "ann"}').stdout == "event paid of 42: signalled\n"
    assert shell.json("events", "signal", "paid", "42") == {"name": "paid", "key": "42", "signalled": False}
    assert shell.json("events", "show", "paid", "42")["value"] == {"by": "ann"}
    assert shell("events", "show", "paid", "42").stdout == 'event paid of 42: {"by":"ann"}\n'
    assert "beyond 64 bits" in shell.error("events", "signal", "paid", "43", "--value", str(1 << 70), code=1)
    for value, why in {"yes": "a text needs its quotes", "[" * 5000 + "]" * 5000: "--value is not JSON"}.items():
        assert why in shell("events", "signal", "paid", "43", "--value", value, code=2).stderr
    call = ("events", "signal", "approved", "42", "--app", "shop:app", "--value")
    assert "does not fit the type of event approved" in shell.error(*call, '"yes"', code=1)
    assert shell(*call, "true").stdout == "event approved of 42: signalled\n"


def test_stats(shell: Shell) -> None:
    assert "nothing was ever enqueued" in shell("stats").stderr
    shell.put(3)
    shell.end("default", JobState.DONE)
    shell.put(2)
    total = shell.json("stats")["total"]
    assert (total["ready"], total["done_total"], total["enqueued_total"]) == (2, 3, 5)
    header, line = shell("stats").stdout.splitlines()
    assert header.split()[:3] == ["queue", "ready", "scheduled"]
    assert line.split()[:2] == ["default", "2"]
    assert "≥" not in line


def test_stats_tell_where_a_job_may_be_older(shell: Shell) -> None:
    shell.put_in([Lane(tenant=f"t{number}") for number in range(1001)])
    [queue] = shell.json("stats")["items"]
    assert queue["oldest_at_least"] is True
    assert "≥" in shell("stats").stdout


def test_stats_watch_goes_on_until_interrupted(shell: Shell) -> None:
    shell.put(3)
    process = shell.process("stats", "--watch", "--every", "100ms")
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(2)]
    assert all("ready 3" in line for line in first)
    _, errors = interrupt(process)
    assert (process.returncode, errors) == (0, "")


def test_workers(shell: Shell) -> None:
    assert shell.json("workers")["items"] == []
    assert "headrace worker" in shell("workers").stderr


def test_migrate(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert shell.json("migrate", "--url", url, url=False)["steps"]
    assert shell.json("migrate", "--url", url, url=False)["steps"] == []
    assert "up to date" in shell("migrate", "--url", url, url=False).stdout


def test_prune(shell: Shell) -> None:
    shell.put(3)
    shell.end("default", JobState.DONE)
    shell.dead(1)
    assert "pruned 0 jobs" in shell("prune").stdout
    assert shell.json("prune", "--done", "0s")["pruned"] == 3
    assert shell.states() == {"dead": 1}
    assert shell.json("prune", "--dead", "0s")["pruned"] == 1
    assert shell.states() == {}


def test_doctor(shell: Shell) -> None:
    found = shell.json("doctor")
    assert found["ok"]
    settings = {each["name"]: each for each in found["settings"]}
    assert settings["url"]["source"] == "flag"
    assert settings["lease"] == {"name": "lease", "value": "15s", "source": "default"}
    assert any(each["about"] == "store" and each["level"] == "ok" for each in found["findings"])
    assert "lease" in shell("doctor").stdout


def test_doctor_finds_a_short_lease(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LEASE", "6s")
    found = shell.json("doctor", code=1)
    assert not found["ok"]
    assert any(each["level"] == "error" and each["about"] == "lease" for each in found["findings"])
    assert next(each for each in found["settings"] if each["name"] == "lease")["source"] == "HEADRACE_LEASE"


def test_doctor_is_strict_when_asked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRAIN", "5m")
    shell("doctor")
    shell("doctor", "--strict", code=1)


def test_doctor_says_when_a_store_is_away(shell: Shell) -> None:
    result = shell("doctor", "--url", "postgresql://u:hunter2@127.0.0.1:1/db", code=1, url=False)
    assert "error" in result.stdout
    assert "hunter2" not in result.output
