"""The result of a race as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.peers.contestants import Contestant
from benchmarks.peers.plan import Samples
from benchmarks.peers.rows import Column, Row
from headrace.bench.result import percentile


class Figure(msgspec.Struct, kw_only=True):
    """The statistics of one figure over all rounds."""

    count: int
    p50: float
    p99: float
    max: float
    sum: float


class Line(msgspec.Struct, kw_only=True):
    """One contestant on one store."""

    store: str
    contestant: str
    how: str
    version: str
    beside: str | None = None
    """The contestant that this one is compared with, where a column compares."""
    figures: dict[str, Figure] = {}
    given_up: str | None = None


def line(store: str, contestant: Contestant, version: str, samples: Samples) -> Line:
    """What the turns of a contestant gave."""
    figures = {name: _figure(values) for name, values in samples.values.items() if values}
    return Line(
        store=store,
        contestant=contestant.name,
        how=contestant.how,
        version=version,
        beside=contestant.beside,
        figures=figures,
        given_up=samples.given_up,
    )


def _figure(values: Sequence[float]) -> Figure:
    return Figure(
        count=len(values),
        p50=percentile(values, 0.5) or 0.0,
        p99=percentile(values, 0.99) or 0.0,
        max=max(values),
        sum=sum(values),
    )


def tables(lines: Sequence[Line], rows: Mapping[str, Row]) -> str:
    """In Markdown: a table for each row, with the contestants that have figures of it."""
    said = [_table(name, row, lines) for name, row in rows.items()]
    said += [f"{each.contestant} left the race: {each.given_up}" for each in lines if each.given_up]
    return "\n\n".join(said)


def _table(name: str, row: Row, lines: Sequence[Line]) -> str:
    used = [column for column in row.columns if any(_cell(each, column) != _NOTHING for each in lines)]
    by_name = {each.contestant: each for each in lines}
    cells = [
        (_title(each), each.how, *(_cell(each, column) + _compared(each, by_name, column) for column in used))
        for each in lines
    ]
    kept = [cell for cell in cells if any(value != _NOTHING for value in cell[2:])]
    headings = (name, "producer", *(column.heading for column in used))
    return "\n".join(f"| {' | '.join(words)} |" for words in (headings, ("---",) * len(headings), *kept))


_NOTHING = "–"


def _title(each: Line) -> str:
    return f"{each.contestant} ({each.version})" if each.version else each.contestant


def _cell(each: Line, column: Column) -> str:
    values = [getattr(each.figures[name], stat) for name, stat in column.figures if name in each.figures]
    if len(values) < len(column.figures):
        return _NOTHING
    return " / ".join(f"{value:,.{column.digits}f}" for value in values)


def _compared(each: Line, by_name: Mapping[str, Line], column: Column) -> str:
    """The first figure of a column that compares, over that of the contestant beside it."""
    other = by_name.get(each.beside or "")
    name, stat = column.figures[0]
    if not column.compares or other is None or name not in each.figures or name not in other.figures:
        return ""
    return f" ({getattr(each.figures[name], stat) / getattr(other.figures[name], stat):.2f})"


def as_json(lines: Sequence[Line], about: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode({**about, "lines": lines}), indent=2).decode()
