"""The race against other queues, without the peers, which a run installs: headrace takes its turns, and a failure is named."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.contestants import Contestant, headrace
from benchmarks.peers.places import opened
from benchmarks.peers.race import Plan, race, suspended

SHORT = Plan(rounds=2, singles=3, pickups=2, paced=5, large=4)


def test_each_contestant_has_every_row():
    contestants = headrace("headrace", Path(sys.executable))
    with opened("sqlite") as place:
        assert "synchronous=full" in place.durability
        given = race([(each, place.fresh()) for each in contestants], SHORT, dict(os.environ))
    for each in contestants:
        samples = given[each.name]
        assert samples.given_up is None
        assert [len(samples.single), len(samples.pickup), len(samples.paced), len(samples.payload)] == [6, 4, 10, 2]
        line = report.line("sqlite", each, "", samples)
        assert f"| {each.name} | {each.how} | {line.single_p50_ms:.2f} / " in report.table([line])
    assert len(given["headrace"].imports) == SHORT.rounds


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
        given = race([(each, place.fresh()) for each in (mute, lost, ours)], SHORT, dict(os.environ))
    assert given["headrace"].given_up is None
    assert given["mute"].given_up is not None
    assert "no broker" in (given["lost"].given_up or "")
    said = report.table([report.line("sqlite", lost, "", given["lost"])])
    assert "lost left the race: " in said
