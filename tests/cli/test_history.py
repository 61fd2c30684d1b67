"""`headrace history`: a table for people, JSON for scripts."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest

from cli.shell import Shell
from headrace.cli.report import sparkline
from headrace.model.histogram import Histogram
from headrace.model.rollup import ALL_QUEUES, HOUR, AttemptEnd, Rollup, usage_rollup
from headrace.model.usage import Usage
from headrace.store import connect


def add(shell: Shell, *rollups: Rollup) -> None:
    async def act() -> None:
        store = connect(shell.url)
        await store.open()
        try:
            await store.add_history(rollups)
        finally:
            await store.close()

    asyncio.run(act())


def rollup(queue: str, end: AttemptEnd, count: int, seconds: float) -> Rollup:
    times = Histogram()
    times.add([seconds], count)
    minute = int(time.time()) // 60 - 2
    return Rollup(
        start=minute,
        id=uuid4(),
        queue=queue,
        task="shop.charge",
        end=end,
        count=count,
        wait=times.pack(),
        run=times.pack(),
        sent=minute * 60,
    )


def test_history(shell: Shell) -> None:
    assert "no attempt ended in this time" in shell("history").stderr
    add(
        shell,
        rollup("mail", AttemptEnd.DONE, 10, 0.25),
        rollup("mail", AttemptEnd.FAILED, 2, 0.25),
        rollup("billing", AttemptEnd.DEAD, 1, 90.0),
    )
    document = shell.json("history")
    assert [(point["name"], point["ends"]) for point in document["items"]] == [
        ("billing", {"dead": 1}),
        ("mail", {"done": 10, "failed": 2}),
    ]
    assert (document["next"], document["step"]) == (None, 60)
    header, billing, mail = (
        shell("history", "--queue", "billing").stdout.splitlines()
        + shell("history", "--by", "queue", "--queue", "mail").stdout.splitlines()[1:]
    )
    assert header.split()[:4] == ["from", "(UTC)", "queue", "ended"]
    assert billing.split()[2:6] == ["billing", "1", "0", "1"]
    assert mail.split()[2:6] == ["mail", "12", "2", "0"]
    assert [point["name"] for point in shell.json("history", "--by", "end")["items"]] == ["dead", "done", "failed"]
    assert [point["count"] for point in shell.json("history", "--by", "task", "--step", "15m")["items"]] == [13]
    assert shell.json("history", "--until", "30m")["items"] == []
    whole = shell.json("history", "--since", "9d", "--by", "task", "--step", "all")
    assert [(point["name"], point["count"]) for point in whole["items"]] == [("shop.charge", 13)]
    assert whole["step"] >= 9 * 86_400
    assert "--step" in shell.error("history", "--step", "always", code=2)


def test_a_history_with_too_many_steps_is_refused(shell: Shell) -> None:
    assert "at most 1500 steps" in shell.error("history", "--since", "2001-01-01T00:00:00Z", "--step", "1h", code=78)


def test_stats_tell_how_soon_a_queue_drains_and_what_it_needs(shell: Shell) -> None:
    shell.put(1200, queue="mail")
    shell.put(3, queue="new")
    # So many ended that the last minute decides, however long the commands take.
    add(shell, rollup("mail", AttemptEnd.DONE, 6000, 10.0))
    queues = {queue["queue"]: queue for queue in shell.json("stats")["items"]}
    assert 0 < queues["mail"]["seconds_to_drain"] < 1200
    assert queues["mail"]["workers"] >= 3
    # Nothing is known of the time that these jobs take.
    assert (queues["new"]["seconds_to_drain"], queues["new"]["workers"]) == (None, 1)
    header, mail, _ = shell("stats").stdout.splitlines()
    assert header.rstrip().endswith("oldest  drains in")
    assert mail.split()[-1][-1] in "sm"


def test_a_report(shell: Shell) -> None:
    assert "no attempt ended in this time" in shell("report").stderr
    minute = int(time.time()) // 60
    slots = Usage(busy=900.0, available=3600.0).pack()
    tenants = Usage({"acme": 7200.0, "": 1.5}).pack()
    add(
        shell,
        rollup("mail", AttemptEnd.DONE, 97, 0.25),
        rollup("mail", AttemptEnd.FAILED, 3, 0.25),
        usage_rollup(slots, minute=minute, span=HOUR, queue=ALL_QUEUES),
        usage_rollup(tenants, minute=minute, span=HOUR, queue="mail"),
    )
    document = shell.json("report")
    assert [(task["task"], task["failure_rate"]) for task in document["items"]] == [("shop.charge", 0.03)]
    assert (document["next"], document["step"]) == (None, 7 * 86_400)
    lines = [line.split() for line in shell("report").stdout.splitlines()]
    assert lines[0][0] == "from"
    assert lines[0][-1] == "week"
    assert ["shop.charge", "100", "3.00", "%", "█", "252", "ms", "252", "ms", "█"] in lines
    assert ["Use", "of", "slots:", "25.0", "%"] in lines
    assert ["acme", "2", "h", "0", "min", "100.0", "%", "█" * 20] in lines
    assert ["(none)", "1.5", "s", "0.02", "%"] in lines
    assert shell.json("report", "--queue", "other")["items"] == []


@pytest.mark.parametrize(
    ("values", "line"),
    [([], ""), ([0.0, None, 1.0], "▁ █"), ([1.0, 0.5, 0.25], "█▅▃"), ([0.001], "▂"), ([None], "")],
)
def test_sparklines(values: list[float | None], line: str) -> None:
    assert sparkline(values, least=0.01) == line
