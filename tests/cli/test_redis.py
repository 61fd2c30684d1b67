"""The command line on Redis: what doctor says of durability and of replicas that are not there."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from cli.shell import Shell, interrupt


@pytest.fixture
def store_name() -> str:
    return "redis"


def durability(found: Any) -> tuple[str, str]:
    [one] = [each for each in found["settings"] if each["name"] == "durability"]
    return one["value"], one["source"]


def test_doctor_does_not_call_a_default_strict_that_is_not(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shell.json("doctor")
    assert durability(found) == ("as the server is set", "default")
    assert any(each["about"] == "durability" and each["level"] == "warning" for each in found["findings"])
    assert "as the server is set" in shell("doctor").stdout
    monkeypatch.setenv("HEADRACE_DURABILITY", "strict")
    found = shell.json("doctor", code=1)
    assert durability(found) == ("strict", "HEADRACE_DURABILITY")
    assert any("appendfsync always" in each["message"] for each in found["findings"] if each["level"] == "error")


def test_doctor_shows_the_urls_own_word(shell: Shell) -> None:
    found = shell.json("doctor", "--url", f"{shell.url}?durability=strict", url=False, code=1)
    assert durability(found) == ("strict", "url")


def test_doctor_misses_replicas(shell: Shell) -> None:
    found = shell.json("doctor", "--url", f"{shell.url}?replicas=1", url=False, code=1)
    [told] = [each for each in found["findings"] if each["about"] == "replicas"]
    assert told["level"] == "error"
    assert "0 replicas" in told["message"]


def test_only_the_worker_and_doctor_warn_of_the_server(shell: Shell) -> None:
    lost = "may lose about the last second"
    arguments = ("shop.charge", "7", '"acme"', "--app", "shop:app")
    for command in (("enqueue", *arguments), ("jobs", "list"), ("dead", "list"), ("stats",)):
        assert finished(shell.process(*command))[1] == "", command
    worker = shell.process("worker", "shop", "--processes", "2")
    while len(shell.json("workers")["items"]) < 2:
        assert worker.poll() is None
    assert interrupt(worker)[1].count(lost) == 1
    printed, remarks = finished(shell.process("doctor", COLUMNS="200"))
    assert (printed.count(lost), remarks) == (1, "")


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    printed = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    return printed
