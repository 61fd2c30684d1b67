"""One race: rounds in which each contestant has its turn, so that a busy minute of the machine hits all of them alike."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.peers.contestants import Contestant
from benchmarks.peers.entry import Entry
from benchmarks.peers.places import Place
from benchmarks.peers.plan import Plan, Samples
from benchmarks.peers.rows import Row


def race(
    contestants: Sequence[Contestant], place: Place, rows: Sequence[Row], plan: Plan, environment: Mapping[str, str]
) -> dict[str, Samples]:
    """What the turns of each contestant gave, by name."""
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as folder:
        entries: list[Entry] = []
        with ExitStack() as stack:
            for contestant in contestants:
                entry = Entry(contestant, place, environment, Path(folder))
                stack.callback(entry.close)
                entry.carry_out(entry.ready)
                entries.append(entry)
            for number in range(plan.rounds):
                now = [row for row in rows if not (number and row.once)]
                # Each round begins with another contestant, so that none always follows the same one.
                first = number % len(entries)
                for entry in entries[first:] + entries[:first]:
                    entry.carry_out(partial(_turn, entry, now, plan))
        # A session of PostgreSQL has told everything when it has ended.
        if place.temp_bytes is not None:
            for entry in entries:
                if entry.contestant.work is not None:
                    entry.samples.values["temp"].append(place.temp_bytes(entry.url) / 1e6)
        return {entry.contestant.name: entry.samples for entry in entries}


def _turn(entry: Entry, rows: Sequence[Row], plan: Plan) -> None:
    """Each row once."""
    for row in rows:
        if not row.works:
            row.measure(entry, plan)
    working = [row for row in rows if row.works]
    if working and entry.contestant.work is not None:
        with entry.working():
            for row in working:
                row.measure(entry, plan)
