"""The race against other queues, without the peers, which a run installs: headrace takes its turns, and a failure is named."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import report
from benchmarks.peers.contestants import Contestant, headrace
from benchmarks.peers.places import KINDS, Kind, opened
from benchmarks.peers.plan import Plan
from benchmarks.peers.race import race
from benchmarks.peers.rows import ROWS
from benchmarks.peers.standstill import suspended

SHORT = Plan(rounds=2, singles=3, pickups=2, paced=5, scripts=1, idle=0.1, busy=0.001, bytes=2_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_each_contestant_has_every_row(kind: Kind):
    contestants = headrace("headrace", Path(sys.executable))
    with opened(kind) as opened_place:
        # How many calls there are matters only to a run that measures.
        place = replace(opened_place, counted_after=0.0)
        given = race(contestants, place, list(ROWS.values()), SHORT, dict(os.environ))
    lines = [report.line(kind, each, "", given[each.name]) for each in contestants]
    assert [line.given_up for line in lines] == [None, None]
    tables = report.tables(lines, ROWS)
    for line in lines:
        counts = {name: figure.count for name, figure in line.figures.items()}
        assert [counts[name] for name in ("single", "pickup", "paced")] == [6, 4, 10]
        for name in ("script exit", "interrupted exit", "good bulk", "1 KB drain", "1 MB bulk"):
            assert counts[name] == SHORT.rounds * (2 if name.startswith("good") else 1)
        assert all(
            figure.p50 > 0
            for name, figure in line.figures.items()
            if "start" not in name and name not in {"calls", "temp"}
        )
        # What other load does not change is counted once.
        assert counts["rss"] == 1
        assert ("calls" in counts) == (kind != "sqlite")
        assert ("temp" in counts) == (kind == "postgres")
        assert f"| {line.contestant} | {line.how} | {line.figures['single'].p50:.2f} / " in tables
    assert {"import cpu", "help wall"} <= lines[0].figures.keys()
    # Sync functions are compared with coroutines.
    ratio = lines[1].figures["good drain"].p50 / lines[0].figures["good drain"].p50
    assert f" ({ratio:.2f}) |" in tables


def test_durability_is_told():
    with opened("sqlite") as place:
        assert "synchronous=full" in place.durability


def test_one_row_alone():
    """A row that needs no worker starts none."""
    ours, _ = headrace("headrace", Path(sys.executable))
    broken = replace(ours, work=(sys.executable, "-c", "raise SystemExit(1)"))
    with opened("sqlite") as place:
        given = race([broken], place, [ROWS["single"]], SHORT, dict(os.environ))
    assert given["headrace"].given_up is None
    assert set(given["headrace"].values) == {"single"}


WRITER = """
import fcntl, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
turn = open(sys.argv[1] + ".turn", "w")
while True:
    fcntl.flock(turn, fcntl.LOCK_EX)
    time.sleep(0.01)
    connection.execute("begin immediate")
    print(flush=True)
    time.sleep(0.02)
    connection.execute("commit")
    time.sleep(0.01)
    fcntl.flock(turn, fcntl.LOCK_UN)
    time.sleep(0.02)
"""
"""Takes a file lock around each transaction, as a worker of headrace does."""


def test_a_worker_that_is_made_to_stand_still_holds_no_lock(tmp_path: Path):
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table jobs (id integer)")
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        try:
            for number in range(5):
                writer.stdout.readline()
                with suspended(writer.pid, f"sqlite:///{path}"), (tmp_path / "jobs.db.turn").open() as turn:
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    connection.execute("insert into jobs values (?)", [number])
        finally:
            writer.kill()
            writer.wait()
            writer.stdout.close()
        assert connection.execute("select count(*) from jobs").fetchone() == (5,)


def test_a_contestant_that_ends_leaves_the_race_and_the_others_go_on():
    ours, _ = headrace("headrace", Path(sys.executable))
    mute = Contestant("mute", "sync", (sys.executable, "-c", ""), None)
    says = (sys.executable, "-c", "import sys; print('{}', flush=True); sys.exit('no broker')")
    lost = Contestant("lost", "sync", says, None)
    with opened("sqlite") as place:
        given = race((mute, lost, ours), place, [ROWS["single"], ROWS["pickup"]], SHORT, dict(os.environ))
    assert given["headrace"].given_up is None
    assert given["mute"].given_up is not None
    assert "no broker" in (given["lost"].given_up or "")
    said = report.tables([report.line("sqlite", lost, "", given["lost"])], ROWS)
    assert "lost left the race: " in said
