"""Limits, pauses and the options of single jobs on the command line."""

from __future__ import annotations

import asyncio

from cli.shell import Shell
from headrace.operate.limits import Limits
from headrace.store import connect
from headrace.task.limit import DeclaredLimits, Limit


def declare(shell: Shell, *limits: Limit) -> None:
    """What a worker does when it starts."""

    async def act() -> None:
        declared = DeclaredLimits()
        declared.declare(limits)
        store = connect(shell.url)
        await store.open()
        await Limits(store).declare(declared)
        await store.close()

    asyncio.run(act())


def test_limits(shell: Shell) -> None:
    assert shell.json("limits", "list") == {"items": [], "next": None}
    assert "no limits" in shell("limits", "list").stderr
    declare(shell, Limit("stripe", rate="90/s", burst=30), Limit("shop", concurrency=4, key=lambda shop: shop))
    header, shop, stripe = shell("limits", "list").stdout.splitlines()
    assert header.split() == ["limit", "allows", "declared", "set", "state"]
    assert shop.split() == ["shop", "4", "at", "once", "4", "at", "once", "open"]
    assert stripe.split() == ["stripe", "90/s", "burst", "30", "90/s", "burst", "30", "open"]
    assert shell("limits", "set", "stripe", "--rate", "50/s", "--burst", "10").stdout == "stripe: 50/s burst 10\n"
    assert shell.json("limits", "set", "shop:acme", "--concurrency", "2") == {
        "name": "shop:acme",
        "concurrency": 2,
        "rate": None,
        "burst": None,
        "declared": None,
        "override": {"concurrency": 2, "rate": None, "burst": None},
        "closed_until": None,
        "half_open": False,
        "factor": 1.0,
        "failures": 0,
    }
    found = {each["name"]: each for each in shell.json("limits", "list")["items"]}
    assert (found["stripe"]["rate"], found["stripe"]["declared"]["rate"]) == (50.0, 90.0)
    assert shell("limits", "reset", "stripe").stdout == "stripe: 90/s burst 30\n"
    none = "no figures of its own, those of shop count\n"
    assert shell("limits", "reset", "shop:acme").stdout == f"shop:acme: {none}"
    assert shell("limits", "reset", "shop:nobody").stdout == f"shop:nobody: {none}"
    assert shell.json("limits", "reset", "shop")["limit"]["concurrency"] == 4


def test_limits_that_no_code_declares_any_more_are_removed(shell: Shell) -> None:
    declare(shell, Limit("shop", concurrency=4, key=lambda n: n), Limit("shopping", rate="5/s"))
    shell("limits", "set", "shop:acme", "--concurrency", "2")
    shell("limits", "set", "shop:other", "--concurrency", "2")
    assert "nothing to remove" in shell("limits", "remove", "shop:nobody").stdout
    assert shell("limits", "remove", "shop:other").stdout == "removed shop:other\n"
    assert shell.json("limits", "remove", "shop") == {"removed": ["shop", "shop:acme"]}
    assert [each["name"] for each in shell.json("limits", "list")["items"]] == ["shopping"]
    assert "no limit 'shop'" in shell.error("limits", "remove", "shop", code=1)


def test_a_cost_that_is_a_function_is_no_reason_to_refuse_other_figures(shell: Shell) -> None:
    declare(shell, Limit("disk", rate="10/s", burst=10, concurrency=8, cost=lambda size: size))
    set_ = shell("limits", "set", "disk", "--burst", "5", "--concurrency", "2")
    assert set_.stdout == "disk: 10/s burst 5, 2 at once\n"


def test_nonsense_to_limits(shell: Shell) -> None:
    declare(shell, Limit("stripe", rate="90/s", burst=30, cost=5))
    assert "no limit 'stipe' (known: stripe)" in shell.error("limits", "set", "stipe", "--rate", "5/s", code=1)
    assert "give at least one of" in shell.error("limits", "set", "stripe", code=78)
    assert "is not a rate" in shell.error("limits", "set", "stripe", "--rate", "fast", code=2)
    assert "one job needs 5 units" in shell.error("limits", "set", "stripe", "--burst", "2", code=78)
    assert "is not a valid limit name" in shell.error("limits", "set", "S!", "--rate", "5/s", code=2)
    assert "a key follows the colon" in shell.error("limits", "set", "stripe:", "--rate", "5/s", code=2)


def test_pauses(shell: Shell) -> None:
    assert "nothing is paused" in shell("pauses").stderr
    assert shell("pause", "--tenant", "acme", "--for", "2h").stdout == "tenant acme: paused\n"
    assert shell.json("pause", "--task", "shop.charge") == {"kind": "task", "name": "shop.charge", "paused": True}
    shell("queues", "pause", "mail", "--until", "2099-01-01T00:00:00Z")
    found = {(each["kind"], each["name"]): each for each in shell.json("pauses")["items"]}
    assert set(found) == {("queue", "mail"), ("task", "shop.charge"), ("tenant", "acme")}
    assert found["queue", "mail"]["until"] == "2099-01-01T00:00:00Z"
    assert found["task", "shop.charge"]["until"] is None
    assert shell("pauses").stdout.splitlines()[0].split() == ["what", "name", "by", "since", "ends"]
    assert shell("resume", "--tenant", "acme").stdout == "tenant acme: resumed\n"
    shell("resume", "--task", "shop.charge")
    shell("resume", "--queue", "mail")
    assert shell.json("pauses") == {"items": [], "next": None}


def test_nonsense_to_pause(shell: Shell) -> None:
    assert "give one of --queue, --task and --tenant" in shell.error("pause", code=2)
    assert "give one of" in shell.error("resume", "--queue", "a", "--task", "b", code=2)
    both = ["--for", "2h", "--until", "2099-01-01T00:00:00Z"]
    assert "--until or --for, not both" in shell.error("pause", "--queue", "a", *both, code=2)
    assert "--until or --for, not both" in shell.error("queues", "pause", "a", *both, code=2)
    assert "is not a duration" in shell.error("pause", "--queue", "a", "--for", "soon", code=2)
    for pause in (("pause", "--queue", "a"), ("queues", "pause", "a")):
        assert "--for 0s pauses nothing" in shell.error(*pause, "--for", "0s", code=2)
        assert "has passed: nothing would be paused" in shell.error(*pause, "--until", "2020-01-01T00:00:00Z", code=78)
    assert shell.json("pauses") == {"items": [], "next": None}


def test_explain_names_who_paused_what(shell: Shell) -> None:
    shell("pause", "--task", "shop.charge")
    id = shell.json("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app")["id"]
    assert "task shop.charge is paused" in shell("jobs", "explain", id).stdout
    shown = shell.json("jobs", "explain", id)
    assert (shown["reason"], shown["details"]["task_paused_until"]) == ("paused", None)


def test_enqueue_with_limits_in_time(shell: Shell) -> None:
    app = ["--app", "shop:app"]
    id = shell.json("enqueue", "shop.charge", "7", '"acme"', "--expires", "1h", "--deadline", "2h", *app)["id"]
    sentence = shell("jobs", "explain", id).stdout
    assert "it expires" in sentence
    assert "its deadline is" in sentence
    id = shell.json("enqueue", "x.y", "1", "--raw", "--expires", "2099-01-01T00:00:00Z")["id"]
    assert "it expires 2099-01-01 00:00:00 UTC" in shell("jobs", "explain", id).stdout
    assert "could never start" in shell.error(
        "enqueue", "shop.charge", "7", '"a"', "--delay", "2h", "--expires", "1h", *app, code=78
    )
    assert "is not a duration" in shell.error("enqueue", "shop.charge", "7", '"a"', "--deadline", "soon", *app, code=2)


def test_reserve_is_checked_before_a_worker_starts(shell: Shell) -> None:
    assert "is not a band" in shell.error("worker", "shop:app", "--reserve", "urgent=2", code=2)
    wrong = ["--reserve", "high=2,low=2", "--concurrency", "4"]
    assert "takes 4 of 4 slots and leaves none" in shell.error("worker", "shop:app", *wrong, code=78)
