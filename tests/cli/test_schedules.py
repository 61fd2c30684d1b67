"""Schedules on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cli.shell import Shell


def test_a_schedules_life(shell: Shell) -> None:
    assert shell.json("schedules", "list") == {"items": [], "next": None}
    assert "app.schedule" in shell("schedules", "list").stderr
    added = shell.json(
        "schedules", "add", "nightly", "shop.charge", "7", '"acme"', "--cron", "0 3 * * *", "--tz", "Europe/Rome",
        "--overlap", "skip", "--catch-up", "all(3)", "--jitter", "5m", "--app", "shop:app",
    )  # fmt: skip
    assert (added["cron"], added["tz"], added["queue"], added["declared"]) == (
        "0 3 * * *",
        "Europe/Rome",
        "billing",
        False,
    )
    assert datetime.now(UTC) < datetime.fromisoformat(added["next"]) < datetime.now(UTC) + timedelta(days=2)
    header, line = shell("schedules", "list").stdout.splitlines()
    assert header.split()[:2] == ["name", "rule"]
    assert line.startswith("nightly  0 3 * * * Europe/Rome  shop.charge  in ")

    assert shell("schedules", "pause", "nightly").stdout == "nightly: paused\n"
    [paused] = shell.json("schedules", "list")["items"]
    assert (paused["paused"], paused["next"]) == (True, None)
    assert shell("schedules", "resume", "nightly").stdout == "nightly: resumed\n"

    [made] = shell.json("schedules", "run-now", "nightly")["items"]
    job = shell.json("jobs", "show", made["answer"])
    assert (job["task"], job["queue"], job["state"]) == ("shop.charge", "billing", "ready")
    [now] = shell.json("schedules", "list")["items"]
    assert (now["last_job"], now["recent"][0]["answer"]) == (made["answer"], "run")

    assert shell("schedules", "remove", "nightly").stdout == "nightly: removed\n"
    assert shell.json("schedules", "list") == {"items": [], "next": None}


def test_one_is_replaced_only_when_told_to(shell: Shell) -> None:
    rule = ("schedules", "add", "sweep", "any.task", "--raw", "--every")
    assert shell(*rule, "15m").stdout.startswith("sweep: every 15m, next ")
    assert "already" in shell.error(*rule, "20m", code=78)
    shell(*rule, "20m", "--replace")
    assert [each["every"] for each in shell.json("schedules", "list")["items"]] == ["20m"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--cron", "0 0 31 2 *"), "never fires"),
        (("--cron", "60 * * * *"), "minute"),
        (("--cron", "* * * * *\n* * * * * root id"), "one line"),
        (("--cron", "@reboot"), "cannot run at boot"),
        (("--cron", "@daily", "--tz", "Nowhere/City"), "not a time zone"),
        (("--cron", "@daily", "--every", "1h"), "either cron"),
        ((), "either cron"),
        (("--every", "1ms"), "at least 1s"),
        (("--every", "1h", "--catch-up", "some"), "catch_up"),
        (("--every", "1h", "--overlap", "maybe"), "--overlap"),
        (("--every", "soon"), "--every"),
    ],
)
def test_a_bad_rule(shell: Shell, options: tuple[str, ...], says: str) -> None:
    assert says in shell.error("schedules", "add", "s", "t", "--raw", *options, code=2)


@pytest.mark.parametrize("name", ["a b", "$(id)", "", "x" * 64])
def test_a_bad_name(shell: Shell, name: str) -> None:
    assert "schedule name" in shell.error("schedules", "add", name, "t", "--raw", "--every", "1h", code=2)
    assert "schedule name" in shell.error("schedules", "pause", name, code=2)


@pytest.mark.parametrize("verb", ["pause", "resume", "run-now", "remove"])
def test_an_unknown_schedule(shell: Shell, verb: str) -> None:
    assert "schedules list" in shell.error("schedules", verb, "nobody", code=1)


def test_bad_arguments_are_refused_before_anything_is_stored(shell: Shell) -> None:
    shell.error(
        "schedules", "add", "s", "shop.charge", '"seven"', '"acme"', "--every", "1h", "--app", "shop:app", code=1
    )
    assert shell.json("schedules", "list") == {"items": [], "next": None}
