"""Unsorted ends: a settlement of jobs that lie far apart appends one row, and a later one sorts those of many into the table.

The table of endings is in the order of the jobs. A settlement of a link of each of a hundred chains would change a page of it
for nearly each link. The ends of the next links of these chains go into the same pages, so sorting in the ends of several
settlements at once changes each page once.

Only plain ends are here: jobs that are done, without a result or a note.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

import msgspec

from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import Row

_SQL = load("unsorted")
_decode = msgspec.json.Decoder(list[int]).decode

MOST = 16
"""Settlements. The one that makes so many sorts them in, which takes about a microsecond for each job."""
_BATCHES = 16
"""Batches in the middle of which runs begin. With fewer, the ends share pages, and sorting them in at once is cheaper."""


def lie_apart(runs: Sequence[int]) -> bool:
    """Whether these runs, each `lo << 10 | size - 1`, would change many pages.

    A run that begins with its batch is not counted. Such runs are those of single jobs and of small calls, whose ends lie side by side.
    """
    return len(runs) >= _BATCHES and len({run >> 26 for run in runs if run >> 10 & 0xFFFF}) >= _BATCHES


def append(tx: Tx, runs: Sequence[int], *counts: int) -> None:
    """Note that these runs are done. `counts`: attempt, failures, crashes, when, the worker's number, and how long it took."""
    tx.cur.execute(_SQL["append"], (str(runs), *counts))
    if (tx.cur.lastrowid or 0) >= MOST:
        sort_in(tx)


def sort_in(tx: Tx) -> None:
    """Move all ends into the table of endings."""
    if tx.cur.execute(_SQL["any"]).fetchone() is not None:
        tx.cur.execute(_SQL["sort_in"])
        tx.cur.execute(_SQL["clear"])


def find(tx: Tx, keys: Collection[int]) -> dict[int, Row]:
    """The jobs among these whose ends are still here, each with its range as the table of endings will have it."""
    ends: dict[int, Row] = {}
    wanted = sorted(keys)
    for runs, *rest in tx.cur.execute(_SQL["all"]).fetchall() if wanted else ():
        for run in _decode(runs):
            lo, hi = run >> 10, (run >> 10) + (run & 1023)
            for key in wanted[bisect_left(wanted, lo) : bisect_right(wanted, hi)]:
                ends[key] = (lo, hi, "done", *rest)
    return ends


def ranges(tx: Tx, since: int) -> list[tuple[int, bytes, int, int]]:
    """Ranges that ended at a time or later: when, the batch, the first key and the last."""
    return tx.cur.execute(_SQL["ranges"], (since,)).fetchall()
