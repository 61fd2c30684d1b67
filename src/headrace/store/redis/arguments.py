"""Batches, claims and settlements as the arguments of the scripts in `lua/`. `rows.py` reads the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from struct import Struct
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.model.gate import Needs, NewGate
from headrace.model.job import Batch, Due, JobState, NewJob, UniqueLock
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import MAX_LEASE, MAX_WEIGHT, Ask, Band
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.store.batches import chains, segments
from headrace.store.redis.element import to_us
from headrace.store.redis.records import ended_result, failure_bytes, result_record, text_bytes

Runs = dict[str, list[tuple[int, int]]]
"""queue → runs (from, to) of jobs with one lane, due time and wait; a job with a key or a lock is a run of its own. A chain is one run."""

MOST_OTHERS = 150
"""Settlements other than plain ends that one script takes."""

_encode = msgspec.msgpack.Encoder().encode
_PAIR = Struct(">HH")
_MOST_POSITIONS = 1 << 16
_LONG: Final = 16
"""Jobs of a chain that are stored as one. The end of a job reads an entry of each chain of its call, so chains of few jobs would cost more than they save."""
_SHORT = 32
"""Bytes below which MessagePack has the length of a text in its first byte."""
_MICROSECOND = timedelta(microseconds=1)
NEEDS = {Needs.DONE: "d", Needs.ENDED: "e", Needs.FAILED: "f"}
"""Needs as scripts take them. A script walks over the jobs that wait in this order of letters."""
_KINDS = {JobState.DEAD: "d", JobState.CANCELLED: "c", JobState.DONE: "o"}


def microseconds(span: timedelta) -> int:
    return span // _MICROSECOND


def due_args(due: Due) -> tuple[int, int]:
    """A due time as two arguments: 0 for now, 1 and a number of µs from now, or 2 and a time in µs."""
    if due is None:
        return 0, 0
    return (1, microseconds(due)) if isinstance(due, timedelta) else (2, to_us(due))


def by_queue(batch: Batch) -> Runs:
    jobs = batch.jobs
    if len(jobs) == 1:
        return {jobs[0].lane.queue: [(0, 0)]}
    runs_by_queue: Runs = {}
    parts = segments(batch)
    waits = any(jobs[low].wait is not None for low, _ in parts)
    together: frozenset[tuple[int, int]] = _chains(batch) if waits else frozenset()
    if together:
        chained = frozenset(ord for low, high in together for ord in range(low, high + 1))
        parts = sorted((*segments(batch, chained), *together))
    for low, high in parts:
        runs = runs_by_queue.setdefault(jobs[low].lane.queue, [])
        if (low, high) in together:
            runs.append((low, high))
            continue
        start = low
        for ord in range(low, high + 1):
            if jobs[ord].key is not None or jobs[ord].unique is not None:
                if start < ord:
                    runs.append((start, ord - 1))
                runs.append((ord, ord))
                start = ord + 1
        if start <= high:
            runs.append((start, high))
    return runs_by_queue


def is_chain(jobs: Sequence[NewJob], low: int, high: int) -> bool:
    """Whether a run is a chain. The jobs of any other run wait for the same, or for nothing."""
    return low < high and jobs[low].wait is not None and jobs[low].wait != jobs[high].wait


def _chains(batch: Batch) -> frozenset[tuple[int, int]]:
    """The runs of a batch that are stored as chains, each behind a job of the same queue that is stored in any case."""
    jobs = batch.jobs
    alone = frozenset(ord for ord, job in enumerate(jobs) if job.key is not None or job.unique is not None)
    runs: list[tuple[int, int]] = []
    for low, high in chains(batch, alone):
        start = low if jobs[low - 1].lane.queue == jobs[low].lane.queue else low + 1
        if high - start + 1 >= _LONG:
            runs.append((start, high))
    return frozenset(runs)


_LETTERS = {
    JobState.BLOCKED: "u",
    JobState.SCHEDULED: "s",
    JobState.READY: "w",
    JobState.RUNNING: "l",
    JobState.DONE: "o",
    JobState.DEAD: "d",
    JobState.CANCELLED: "c",
}


def states_arg(states: Iterable[JobState]) -> str:
    """States as scripts take them: a letter each."""
    return "".join(_LETTERS[state] for state in states)


def lock_args(ord: int, number: int, job: NewJob, lock: UniqueLock) -> tuple[Any, ...]:
    """A unique lock as `enqueue.lua` takes it."""
    within = -1 if lock.within is None else microseconds(lock.within)
    return ord, number, f"{job.task}\0{lock.name}", states_arg(lock.states), within, int(lock.replace)


# ── claims ───────────────────────────────────────────────────────────────────


def ask_args(ask: Ask, limit: int, queues: Sequence[str], bands: Sequence[Band]) -> bytes:
    """Bands, weights and tenant as `claim.lua` takes them; empty for a plain claim."""
    plain = len(bands) == 1 and bands[0] == everything(limit)
    if plain and not ask.weights and ask.tenant is None:
        return b""
    numbers = {queue: number for number, queue in enumerate(queues)}
    passes = [
        (band.lowest, band.highest, max(0, band.share), [numbers[name] for name in band.queues if name in numbers])
        for band in bands
        if not band.queues or numbers.keys() & set(band.queues)
    ]
    weights = [{tenant: min(w, MAX_WEIGHT) for tenant, w in ask.weights.get(queue, {}).items()} for queue in queues]
    return _encode((passes, weights if any(weights) else [], "0" if ask.tenant is None else "1" + ask.tenant))


def everything(limit: int) -> Band:
    return Band(LOWEST_PRIORITY, HIGHEST_PRIORITY, limit)


def bands_of(ask: Ask, limit: int) -> list[Band]:
    """The bands of a claim. A script works through each as if it were a claim of its own."""
    return [*ask.bands, *(() if ask.only_bands else (everything(limit),))]


# ── gates ────────────────────────────────────────────────────────────────────


def word(data: bytes) -> msgspec.Raw:
    """Bytes inside of MessagePack for a script. The servers' decoder knows texts of any bytes, and no binary data."""
    size = len(data)
    return msgspec.Raw((bytes((0xA0 | size,)) if size < _SHORT else b"\xda" + size.to_bytes(2, "big")) + data)


def gate_args(gate: NewGate) -> tuple[bytes | str | int, ...]:
    """A gate to be made, as scripts take it."""
    return gate.id.bytes, gate.queue, int(gate.sealed), int(gate.signalled), text_bytes(gate.label), gate.tenant


def gate_words(gate: NewGate) -> list[Any]:
    """The same inside of MessagePack."""
    return [word(field) if isinstance(field, bytes) else field for field in gate_args(gate)]


def waits_of(settlements: Iterable[tuple[int, Settlement]]) -> list[Again]:
    """Those of these settlements that have to do with gates."""
    return [again for _, again in settlements if isinstance(again, Again) and (again.gates or again.waits)]


def _suspension(again: Again, homes: Mapping[UUID, str]) -> bytes:
    """The gates and waits of a settlement, as `settle_links.lua` takes them. homes: prefixes of the queues of gates on a cluster."""
    if not again.gates and not again.waits:
        return b""
    gates = [field for gate in again.gates for field in (*gate_words(gate), homes.get(gate.id, ""))]
    waits: list[Any] = []
    for wait in again.waits:
        waits += (word(wait.gate.bytes), NEEDS[wait.needs], homes.get(wait.gate, ""))
    return _encode((gates, waits))


# ── settlements ──────────────────────────────────────────────────────────────


def all_done(settlements: Sequence[tuple[int, Settlement]]) -> bool:
    """Whether each position from the first on, in order, is done without a result. A busy worker settles most leases so."""
    done = [position for position, settlement in settlements if settlement is DONE]
    return 0 < len(settlements) <= MAX_LEASE and done == list(range(len(settlements)))


def done_args(count: int) -> list[Any]:
    """The arguments of `settle.lua` for settlements that `all_done` accepts."""
    return [_PAIR.pack(0, count - 1), 0, 0]


class SettleArguments:
    """Settlements as `settle.lua` takes them: plain ends as ranges, their results, and the other settlements one by one."""

    def __init__(
        self, settlements: Sequence[tuple[int, Settlement]], homes: Mapping[UUID, str] = MappingProxyType({})
    ) -> None:
        """homes: prefixes of the queues of the gates that jobs go on waiting for, on a cluster."""
        impossible: set[int] = set()
        self._results: list[Any] = []
        self._others: list[tuple[int, list[Any]]] = []
        self._done: list[int] = []
        positions = self.positions = set[int]()
        for position, settlement in settlements:
            # The first settlement of a position counts.
            if position in positions:
                continue
            if not 0 <= position < _MOST_POSITIONS:
                impossible.add(position)
                continue
            positions.add(position)
            if settlement is DONE:
                self._done.append(position)
            elif isinstance(settlement, Finish) and _plain(settlement):
                self._done.append(position)
                if settlement.result is not None:
                    self._results += (position, result_record(settlement.result, settlement.result_ttl))
            else:
                self._others.append((position, _other(position, settlement, homes)))
        self.impossible = frozenset(impossible)

    def calls(self) -> Iterator[tuple[list[Any], set[int]]]:
        """The arguments of each call, and the positions that it settles."""
        results = len(self._results) // 2
        first, rest = self._others[:MOST_OTHERS], self._others[MOST_OTHERS:]
        args: list[Any] = [_ranges(self._done), results, *self._results, len(first)]
        for _, fields in first:
            args += fields
        yield args, {*self._done, *(position for position, _ in first)}
        while rest:
            some, rest = rest[:MOST_OTHERS], rest[MOST_OTHERS:]
            args = [b"", 0, len(some)]
            for _, fields in some:
                args += fields
            yield args, {position for position, _ in some}


def _plain(finish: Finish) -> bool:
    """Whether a job is done and leaves nothing but a result."""
    return (
        finish.state is JobState.DONE
        and finish.note is None
        and finish.failure is None
        and finish.failures is None
        and finish.crashes is None
    )


def _other(position: int, settlement: Settlement, homes: Mapping[UUID, str]) -> list[Any]:
    note = b"0" if settlement.note is None else b"1" + text_bytes(settlement.note)
    failure = failure_bytes(settlement.failure)
    if isinstance(settlement, Again):
        due = due_args(settlement.due)
        suspect = int(settlement.suspect)
        waits = _suspension(settlement, homes)
        return [position, "a", *due, settlement.failures, settlement.crashes, suspect, note, failure, waits]
    failures = "" if settlement.failures is None else settlement.failures
    crashes = "" if settlement.crashes is None else settlement.crashes
    result = b"" if settlement.result is None else ended_result(settlement.result, settlement.result_ttl)
    return [position, _KINDS[settlement.state], 0, 0, failures, crashes, 0, note, failure, result]


def _ranges(positions: list[int]) -> bytes:
    """Pairs (from, to) of two bytes each."""
    if not positions:
        return b""
    count = len(positions)
    low, high = positions[0], positions[-1]
    if high - low == count - 1 and (count == 1 or positions == list(range(low, high + 1))):
        return _PAIR.pack(low, high)
    pairs: list[bytes] = []
    ordered = sorted(positions)
    start = last = ordered[0]
    for position in ordered[1:]:
        if position != last + 1:
            pairs.append(_PAIR.pack(start, last))
            start = position
        last = position
    pairs.append(_PAIR.pack(start, last))
    return b"".join(pairs)
