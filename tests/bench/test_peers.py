"""The race against other queues, without the peers, which a run installs: headrace takes its turns, and a failure is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.contestants import Contestant, headrace
from benchmarks.peers.places import opened
from benchmarks.peers.race import Plan, race

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
