"""Gates: the ends of jobs are counted, and the jobs that wait are released or cancelled, in the transaction of the end.

A *source* is a job's key, or minus the number of a gate. There is one writer, so the counts are exact, and nothing can come between
a look and a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from headrace.errors import GroupOver
from headrace.model.gate import (
    NEVER_SEALED,
    Counts,
    Edge,
    Needs,
    NewGate,
    Verdict,
    as_member,
    is_gate,
    verdict,
    why_cancelled,
)
from headrace.model.job import Batch, JobId, job_id, split_id
from headrace.model.records import Retention
from headrace.store.sqlite import chains
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import BLOCKED, READY, SCHEDULED, Tx
from headrace.store.sqlite.locate import key_of, locate_key
from headrace.store.sqlite.packing import line_numbers
from headrace.store.sqlite.rows import INSERT_ENDINGS, INSERT_READY, INSERT_SCHEDULED, Row, as_json, micros

SQL = load("gates")
_AT_ONCE = 10_000
"""Runs that one transaction releases or cancels."""
_ENDED = ("done", "dead", "cancelled")
GONE = Counts(1, cancelled=1)
"""A job or a gate that is not stored any more."""

Change = tuple[int, int, str | None, str | None]
"""A run of sources whose end changed: first, last, how they had ended before, and how they have now. None: they have not."""
Looks = dict[int, str | None]
"""Sources whose followers are to be looked at, and how the jobs among them have ended. None: that is to be looked up."""


class Linked(NamedTuple):
    """To what the end of a job can matter."""

    edges: int
    blocked: int
    chains: int


def linked(tx: Tx) -> Linked:
    """What there is. Where nothing is, this look is all that an end costs."""
    return Linked(*tx.cur.execute(SQL["any"]).fetchone())


def count(tx: Tx, changes: Iterable[Change]) -> None:
    """Count the ends of jobs on their gates, and let follow what follows."""
    follow(tx, count_runs(tx, list(changes)))


def count_runs(tx: Tx, changes: Sequence[Change], to: Linked | None = None) -> Looks:
    """Change counts. Answers the sources whose followers are to be looked at. `to`: what `linked` says."""
    if not changes:
        return {}
    to = to or linked(tx)
    if to.chains:
        to = _go_on(tx, changes, to)
    looks: Looks = {}
    if not to.edges and not to.blocked:
        return looks
    # All runs in one step: a lease of many chains has as many runs as jobs.
    runs = as_json([(first, last, _start_of(first)) for first, last, _, _ in changes])
    if to.edges:
        _count_members(tx, changes, runs, looks)
    if to.blocked:
        for run, source in tx.cur.execute(SQL["awaited"], (runs,)).fetchall():
            looks[source] = changes[run][3]
    return looks


def _go_on(tx: Tx, changes: Sequence[Change], to: Linked) -> Linked:
    """Let chains go on that wait for one of these. Answers what there is now.

    What waits for a job within a run of ends has ended with it, so only the last one is looked for.
    """
    done = [last for _, last, _, after in changes if after == "done" and last > 0]
    if done:
        chains.go_on(tx, done)
    cancelled = [last for _, last, _, after in changes if after == "cancelled" and last > 0]
    if cancelled:
        chains.loosen(tx, cancelled)
        return linked(tx)
    return to


def _count_members(tx: Tx, changes: Sequence[Change], runs: str, looks: Looks) -> None:
    gates: dict[int, tuple[int, int, str | None, list[int]]] = {}
    for run, gate, lo, hi, sealed, size, member_state, *ended in tx.cur.execute(SQL["counted_on"], (runs,)).fetchall():
        first, last, before, after = changes[int(run)]
        counts = gates.setdefault(gate, (sealed, size, member_state, ended))[3]
        for state, sign in ((before, -1), (after, 1)):
            if state is not None:
                counts[_ENDED.index(state)] += sign * (min(last, hi) - max(first, lo) + 1)
    for gate, (sealed, size, member_state, counts) in gates.items():
        tx.cur.execute(SQL["count"], (gate, *counts, tx.now))
        done, dead, cancelled = counts
        # Most ends are those of one member among many that run still, and nothing follows from them.
        if dead or cancelled or member_state is not None or (sealed and done == size):
            looks[-gate] = None


def _start_of(source: int) -> int:
    """The first source of the same batch."""
    return source >> 16 << 16 if source > 0 else source


# ── what follows ─────────────────────────────────────────────────────────────


def follow(tx: Tx, looks: Looks) -> int:
    """Release and cancel what waits for these sources, and all that follows from it; how many jobs moved.

    What is left after a bounded amount of work is put off until `promote`.
    """
    left = _AT_ONCE
    moved = 0
    while looks:
        wave, looks = looks, {}
        for sources, counts, sealed, before in _alike(tx, wave):
            if left <= 0:
                tx.cur.execute(SQL["put_off"], (as_json(sources),))
                continue
            verdicts = {needs: verdict(needs, counts, sealed=sealed) for needs in Needs}
            decided = as_json([needs.value for needs, says in verdicts.items() if says is not Verdict.WAIT])
            rows = tx.cur.execute(SQL["followers"], (as_json(sources), decided, left)).fetchall()
            if len(rows) == left:
                tx.cur.execute(SQL["put_off"], (as_json(sources),))
            left -= len(rows) + len(sources)
            cancelled = decide(tx, partial(id_of, tx), rows, verdicts)
            moved += sum(row[9] - row[8] + 1 for row in rows)
            looks |= count_runs(tx, [(lo, hi, None, "cancelled") for lo, hi in cancelled])
            [source, *_] = sources
            if source < 0 and (now := _as_member(counts, sealed=sealed)) != before:
                tx.cur.execute(SQL["told"], (-source, now))
                looks |= count_runs(tx, [(source, source, before, now)])
    return moved


def _alike(tx: Tx, looks: Looks) -> Iterator[tuple[list[int], Counts, bool, str | None]]:
    """Sources of the same state, and this state as `state_of` gives it: jobs that ended alike together, each gate alone."""
    jobs: dict[str | None, list[int]] = {}
    for source, ended in looks.items():
        if source > 0:
            jobs.setdefault(ended or state_of(tx, source)[2], []).append(source)
    for ended, sources in jobs.items():
        if ended is not None:
            yield sources, Counts(1, **{ended: 1}), True, ended
    for source in looks:
        if source < 0:
            yield [source], *state_of(tx, source)


def decide(
    tx: Tx,
    awaited: Callable[[int], UUID],
    rows: Sequence[Row],
    verdicts: Mapping[Needs, Verdict],
    *,
    note: str | None = None,
) -> list[tuple[int, int]]:
    """Move runs out of the blocked ones. Answers those that were cancelled. `awaited`: the id of what they waited for."""
    if not rows:
        return []
    tx.cur.execute(SQL["unblock"], (str([row[8] for row in rows]),))
    fresh: dict[tuple[str, int, str, int], list[tuple[int, int]]] = {}
    ready: list[Row] = []
    scheduled: list[Row] = []
    endings: list[Row] = []
    for source, needs, delay, due, *run in rows:
        queue, lo, hi, attempt = run[0], run[4], run[5], run[6]
        # A job that ran before goes on, whatever became of what it waited for.
        if attempt == 0 and verdicts[needs] is Verdict.CANCEL:
            why = note or why_cancelled(Needs(needs), awaited(source))
            endings.append((lo, hi, "cancelled", *run[6:9], tx.now, None, None, why, None, None))
            tx.depth.add(queue, BLOCKED, lo - hi - 1)
            continue
        run_at = tx.now + delay if delay is not None else due or 0
        if run_at > tx.now:
            scheduled.append((*run, run_at))
            tx.depth.move(queue, BLOCKED, SCHEDULED, hi - lo + 1)
        elif attempt:
            ready.append(tuple(run))
            tx.depth.move(queue, BLOCKED, READY, hi - lo + 1)
        else:
            fresh.setdefault((queue, run[1], run[2], run[3]), []).append((lo, hi))
    INSERT_READY.insert(tx.cur, ready)
    INSERT_SCHEDULED.insert(tx.cur, scheduled)
    INSERT_ENDINGS.insert(tx.cur, endings)
    lines = line_numbers(tx, {(queue, priority) for queue, priority, _, _ in fresh}) if fresh else {}
    for (queue, priority, tenant, lane), runs in fresh.items():
        tx.cur.execute(SQL["release"], (as_json(runs), lines[queue, priority], tenant, lane))
        tx.depth.move(queue, BLOCKED, READY, sum(hi - lo + 1 for lo, hi in runs))
    return [(row[0], row[1]) for row in endings]


def state_of(tx: Tx, source: int) -> tuple[Counts, bool, str | None]:
    """The counts of a source, whether it is sealed, and how it ended as a member of other gates."""
    if source < 0:
        row = tx.cur.execute(SQL["state"], (-source,)).fetchone()
        return (GONE, True, "cancelled") if row is None else (Counts(*row[1:5]), bool(row[0]), row[5])
    spot = locate_key(tx, source)
    ended = "cancelled" if spot is None else spot.state if spot.state in _ENDED else None
    return Counts(1, **({} if ended is None else {ended: 1})), True, ended


def _as_member(counts: Counts, *, sealed: bool) -> str | None:
    member = as_member(counts, sealed=sealed)
    return "done" if member.done else "dead" if member.dead else "cancelled" if member.cancelled else None


# ── sources and ids ──────────────────────────────────────────────────────────


def source_of(tx: Tx, id: UUID) -> int | None:
    """None: no such gate, or no job of that batch is known."""
    if not is_gate(id):
        return key_of(tx, JobId(id))
    row = tx.cur.execute(SQL["number"], (id.bytes,)).fetchone()
    return None if row is None else -row[0]


def id_of(tx: Tx, source: int) -> UUID:
    if source < 0:
        return UUID(bytes=tx.cur.execute(SQL["gate_id"], (-source,)).fetchone()[0])
    return job_id(UUID(bytes=tx.cur.execute(SQL["batch"], (source >> 16,)).fetchone()[0]), source & 0xFFFF)


# ── gates and members of a batch ─────────────────────────────────────────────


def make(tx: Tx, gates: Iterable[NewGate]) -> Looks:
    """Make the gates that do not exist. Answers their sources: one that is sealed and has no members is over."""
    sources: Looks = {}
    for gate in gates:
        values = (gate.id.bytes, gate.queue, gate.label, gate.tenant, int(gate.sealed), int(gate.signalled), tx.now)
        if (row := tx.cur.execute(SQL["make"], values).fetchone()) is not None:
            sources[-row[0]] = None
    return sources


def refuse_over(tx: Tx, batch: Batch) -> None:
    """Raise GroupOver for members of a gate that takes none."""
    fresh = {gate.id for gate in batch.gates}
    for into in dict.fromkeys(edge.into for edge in batch.edges):
        row = tx.cur.execute(SQL["over"], (into.bytes,)).fetchone()
        if (row is None and into not in fresh) or (row is not None and row[0]):
            raise GroupOver(into)


def add_members(tx: Tx, batch: Batch, base: int | None, existing: Mapping[int, JobId]) -> Looks:
    """Make the gates of a batch, add its members, seal. Answers the sources that changed.

    `base`: the key of place 0. None: no job of the batch was stored.
    """
    changed = make(tx, batch.gates)
    for edge in batch.edges:
        gate = source_of(tx, edge.into)
        assert gate is not None  # refuse_over has looked
        changed[gate] = None
        for first, last, ended in _members(tx, edge, batch, base, existing):
            is_new = first is None or tx.cur.execute(SQL["add_edge"], (-gate, first, last)).rowcount
            if is_new:
                size = 1 if first is None or last is None else last - first + 1
                counts = Counts(size, **({} if ended is None else {ended: size}))
                values = (-gate, counts.size, counts.done, counts.dead, counts.cancelled, tx.now)
                tx.cur.execute(SQL["grow"], values)
    for id in batch.seals:
        if (row := tx.cur.execute(SQL["seal"], (id.bytes, tx.now)).fetchone()) is not None:
            changed[-row[0]] = None
    return changed


def _members(
    tx: Tx, edge: Edge, batch: Batch, base: int | None, existing: Mapping[int, JobId]
) -> Iterator[tuple[int | None, int | None, str | None]]:
    """Runs of members: first and last source, and how they have ended. No source: it is not stored any more."""
    of, first = split_id(edge.first)
    if is_gate(edge.first) or of != batch.id:
        source = source_of(tx, edge.first)
        yield source, source, "cancelled" if source is None else state_of(tx, source)[2]
        return
    last = split_id(edge.last)[1]
    for place in [*sorted(ord for ord in existing if first <= ord <= last), last + 1]:
        if place > first and base is not None:
            yield base + first, base + place - 1, None
        first = place + 1


# ── retention ────────────────────────────────────────────────────────────────


def prune_gates(tx: Tx, keep: Retention, limit: int) -> int:
    """Drop gates past retention, and cancel what waits for one that was never sealed; how many gates went."""
    abandoned = [no for (no,) in tx.cur.execute(SQL["never_sealed"], (tx.now - micros(keep.dead), limit)).fetchall()]
    for no in abandoned:
        _cancel_followers(tx, -no)
        _drop(tx, no)
    count = len(abandoned)
    # A gate that goes may have kept others.
    while count < limit and (old := tx.cur.execute(SQL["old"], (tx.now - micros(keep.done), tx.now, limit)).fetchall()):
        for (no,) in old:
            _drop(tx, no)
        count += len(old)
    return count


def _cancel_followers(tx: Tx, source: int) -> None:
    rows = tx.cur.execute(
        SQL["followers"], (as_json([source]), as_json([needs.value for needs in Needs]), -1)
    ).fetchall()
    cancels = dict.fromkeys(Needs, Verdict.CANCEL)
    cancelled = decide(tx, partial(id_of, tx), rows, cancels, note=NEVER_SEALED)
    count(tx, [(lo, hi, None, "cancelled") for lo, hi in cancelled])


def _drop(tx: Tx, no: int) -> None:
    for statement in ("drop_edges", "drop_as_member", "drop_gate"):
        tx.cur.execute(SQL[statement], (no,))
