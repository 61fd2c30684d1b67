"""`headrace dead`: by bug and by job, replay and discard, by id, by group and by filter."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import msgspec
import pytest

from cli.shell import Shell, interrupt
from headrace.cli import dead
from headrace.model.job import JobState


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "headrace.audit"]


@pytest.fixture
def two_bugs(shell: Shell) -> list[dict[str, Any]]:
    """Three jobs of one bug, one of another: the groups."""
    shell.put(3)
    shell.end("default", JobState.DEAD, message="no money for 7")
    shell.put(1, task="mail.send", queue="mail")
    shell.end("mail", JobState.DEAD, message="no such address")
    groups: list[dict[str, Any]] = shell.json("dead", "list", "--group")["items"]
    return groups


# ── looking ──────────────────────────────────────────────────────────────────


def test_list_and_show(shell: Shell) -> None:
    shell.put(1)
    (id,) = shell.dead(1, queue="sad")
    assert [job["id"] for job in shell.json("dead", "list")["items"]] == [str(id)]
    assert shell.json("dead", "list", "--queue", "other")["items"] == []
    found = shell.json("dead", "show", str(id))
    assert found["history"][0]["kind"] == "builtins.ValueError"
    assert "no money" in shell("dead", "show", str(id)).stdout
    assert f"bug {found['fingerprint']}: {found['title']}" in shell("dead", "show", str(id)).stdout
    assert found["fingerprint"] == shell.json("dead", "list", "--group")["items"][0]["fingerprint"]


def test_by_bug(shell: Shell, two_bugs: list[dict[str, Any]]) -> None:
    assert [(group["count"], group["tasks"], group["title"]) for group in two_bugs] == [
        (3, ["shop.charge"], "builtins.ValueError: no money for # in shop.charge"),
        (1, ["mail.send"], "builtins.ValueError: no such address in mail.send"),
    ]
    assert shell.json("dead", "list", "--group", "--queue", "mail") == {"items": two_bugs[1:], "next": None, "dead": 1}
    result = shell("dead", "list", "--group")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["fingerprint", "count", "last", "first", "tasks", "bug"]
    assert lines[1].split()[:2] == [two_bugs[0]["fingerprint"], "3"]
    assert "4 dead jobs, 2 bugs" in result.stderr
    for line in result.stderr.splitlines()[1:]:
        # What it says to type works as it is.
        words = line.partition("headrace ")[2].split()
        shell(*words[:-2] if "--canary" in words else words)


def test_a_terminal_shows_bugs_and_a_pipe_jobs(
    shell: Shell, two_bugs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del two_bugs
    assert "fingerprint" not in shell("dead", "list").stdout
    monkeypatch.setattr(dead, "on_terminal", lambda: True)
    assert shell("dead", "list").stdout.startswith("fingerprint")
    assert shell("dead", "list", "--no-group").stdout.startswith("id")
    assert len(shell.json("dead", "list")["items"]) == 4


def test_nothing_dead(shell: Shell) -> None:
    assert shell("dead", "list", "--group").stderr == "no dead jobs\n"
    assert shell.json("dead", "list", "--group") == {"items": [], "next": None, "dead": 0}


def test_the_jobs_of_a_bug(shell: Shell, two_bugs: list[dict[str, Any]]) -> None:
    bug = two_bugs[0]["fingerprint"]
    first = shell.json("dead", "list", "--group", bug, "--limit", "2")
    rest = shell.json("dead", "list", "--group", bug, "--limit", "2", "--before", first["next"])
    assert [job["task"] for job in first["items"] + rest["items"]] == ["shop.charge"] * 3
    assert "not a fingerprint" in shell.error("dead", "list", "--group", "x", code=2)
    for wrong in (("--group", "--before", first["next"]), ("--group", "--no-group"), ("--group", bug, "--no-group")):
        assert "leave one out" in shell.error("dead", "list", *wrong, code=2)


# ── replaying ────────────────────────────────────────────────────────────────


def test_replay_by_id(shell: Shell) -> None:
    first, second = shell.dead(2)
    assert shell("dead", "replay", str(first)).stdout == "replayed 1 job\n"
    assert shell.states() == {"ready": 1, "dead": 1}
    assert "not dead" in shell.error("dead", "replay", str(first), code=1)
    assert shell.json("dead", "replay", str(second)) == {
        "replayed": [str(second)], "refused": [], "late": [], "trial": None, "stopped": None,
    }  # fmt: skip


def test_replay_by_filter(shell: Shell) -> None:
    shell.dead(3, queue="sad")
    shell.dead(2, queue="worse")
    assert shell("dead", "replay", "--queue", "sad", "--rate", "1000/s").stdout == "replayed 3 jobs\n"
    assert shell.states() == {"ready": 3, "dead": 2}
    assert "is not a rate" in shell.error("dead", "replay", "--queue", "sad", "--rate", "often", code=2)


def test_replay_by_group(shell: Shell, two_bugs: list[dict[str, Any]]) -> None:
    bug = two_bugs[0]["fingerprint"]
    assert shell("dead", "replay", "--group", bug).stdout == "replayed 3 jobs\n"
    assert shell.states() == {"ready": 3, "dead": 1}
    assert f"no dead job died of {bug}" in shell.error("dead", "replay", "--group", bug, code=1)
    assert "not both" in shell.error("dead", "replay", two_bugs[1]["sample"], "--group", bug, code=2)


def test_replay_of_more_than_a_page(shell: Shell) -> None:
    shell.dead(1201)
    assert shell("dead", "replay", "--everything", "--yes").stdout == "replayed 1,201 jobs\n"
    assert shell.states() == {"ready": 1201}


def test_everything_asks_first(shell: Shell) -> None:
    shell.dead(2)
    shell("dead", "replay", "--everything", code=1, input="n\n")
    assert shell.states() == {"dead": 2}
    shell("dead", "replay", "--everything", input="y\n")
    assert shell.states() == {"ready": 2}
    assert "no jobs are selected" in shell.error("dead", "replay", code=2)


def test_what_is_too_late_stays_dead(shell: Shell) -> None:
    call = ("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app")
    late = shell.json(*call, "--expires", "1ms")["id"]
    fine = shell.json(*call, "--expires", "1h")["id"]
    shell.end("billing", JobState.DEAD)
    assert "1 job left dead, as expires or deadline has passed" in shell.error("dead", "replay", late, code=1)
    answer = shell("dead", "replay", "--task", "shop.charge")
    assert answer.stdout == "replayed 1 job\n"
    assert late in answer.stderr
    assert fine not in answer.stderr
    assert shell.json("dead", "replay", "--task", "shop.charge")["late"] == [late]


def test_canaries_that_nobody_runs(shell: Shell) -> None:
    shell.dead(5)
    call = ("dead", "replay", "--everything", "--yes", "--canary", "2", "--patience", "0s")
    answer = shell.json(*call, code=1)
    assert answer["trial"] == {"tried": 2, "done": 0, "dead": 0, "expired": 0, "gone": 0, "waiting": 2}
    assert "2 of 2 canaries have not ended" in answer["stopped"]
    assert shell.states() == {"ready": 2, "dead": 3}
    assert "stopped: 2 of 2" in shell.error(*call, code=1)


def test_canaries_with_a_worker(shell: Shell) -> None:
    """The bug is still there: the canary dies again, and the rest is left alone."""
    for number in range(4):
        shell("enqueue", "shop.fail", f'"order {number}"', "--app", "shop:app")
    with shell.process("worker", "shop:app", "--poll", "50ms") as worker:
        try:
            shell.reach({"dead": 4})
            answer = shell.json("dead", "replay", "--task", "shop.fail", "--canary", "1", code=1)
        finally:
            worker.terminate()
    assert answer["trial"] == {"tried": 1, "done": 0, "dead": 1, "expired": 0, "gone": 0, "waiting": 0}
    assert answer["stopped"] == "1 of 1 canaries died again, at most 0 may: the rest stays dead"
    assert shell.states() == {"dead": 4}
    [group] = shell.json("dead", "list", "--group")["items"]
    assert group["title"].endswith("in fail (folder/shop.py)")


# ── discarding ───────────────────────────────────────────────────────────────


def test_discard_leaves_a_record(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    first, second = shell.dead(2)
    assert shell("dead", "discard", str(first), "--reason", "bad import").stdout == "discarded 1 job\n"
    [line] = audited(caplog)
    payload = msgspec.msgpack.encode(([7, "acme"], {"card": "visa-4242"}))
    assert (line["id"], line["reason"], line["payload_sha256"]) == (
        str(first), "bad import", hashlib.sha256(payload).hexdigest(),
    )  # fmt: skip
    assert line["by"]
    caplog.clear()
    call = ("dead", "discard", "--task", "shop.charge", "--app", "shop:app", "--reason", "the rest")
    [record] = shell.json(*call)["discarded"]
    assert record["id"] == str(second)
    assert record["arguments"]["kwargs"] == {"card": "•••"}
    assert "visa-4242" not in str(audited(caplog))
    assert shell.states() == {}


def test_the_record_is_on_stderr_where_nobody_set_up_logging(shell: Shell) -> None:
    (id,) = shell.dead(1)
    with shell.process("dead", "discard", str(id), "--reason", "r") as process:
        out, err = process.communicate(timeout=60)
    assert out == "discarded 1 job\n"
    assert json.loads(err)["id"] == str(id)


def test_discard_by_group(shell: Shell, two_bugs: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace.audit"):
        shell("dead", "discard", "--group", two_bugs[0]["fingerprint"], "--reason", "never valid")
    assert {line["fingerprint"] for line in audited(caplog)} == {two_bugs[0]["fingerprint"]}
    assert shell.states() == {"dead": 1}


def test_discard_needs_a_reason(shell: Shell) -> None:
    (id,) = shell.dead(1)
    assert "--reason" in shell.error("dead", "discard", str(id), code=2)
    assert "needs a reason" in shell.error("dead", "discard", str(id), "--reason", " ", code=78)
    assert shell.states() == {"dead": 1}


def test_discard_touches_only_the_dead(shell: Shell) -> None:
    (id,) = shell.put(1)
    assert "not dead" in shell.error("dead", "discard", str(id), "--reason", "r", code=1)
    assert shell.states() == {"ready": 1}


# ── retention ────────────────────────────────────────────────────────────────


def test_prune_honours_the_queues_own_retention(shell: Shell) -> None:
    (shell.folder / "kept.py").write_text(
        "from headrace import Headrace\napp = Headrace()\napp.queue('kept', dead_retention='1d')\n"
        "app.queue('short', dead_retention='0s')\n"
    )
    for queue in ("kept", "short"):
        shell.dead(1, queue=queue)
    assert shell.json("prune", "--app", "kept:app")["pruned"] == 1
    assert [job["queue"] for job in shell.json("dead", "list")["items"]] == ["kept"]
    assert shell.json("prune", "--app", "kept:app", "--dead", "0s")["pruned"] == 1


def test_an_interrupted_replay_says_how_far_it_came(shell: Shell) -> None:
    shell.dead(5)
    # The first few at once, the others in years.
    process = shell.process("dead", "replay", "--everything", "--yes", "--rate", "1/d")
    shell.reach({"dead": 4, "ready": 1})
    _, errors = interrupt(process)
    assert process.returncode == 130
    assert "stopped: 1 job replayed, the rest stay dead" in errors
    [entry] = shell.json("audit")["items"]
    assert (entry["action"], entry["jobs"]) == ("dead.replay", 1)
