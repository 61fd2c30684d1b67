"""REPORT: what running tasks say of their jobs, under their lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.model.job import LogLine
from headrace.model.lease import MAX_LOG, Report, Token
from headrace.store.sqlite import lease as leases
from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.rows import Bulk, micros, moment, text

_SQL = load("report")
_KEEP = Bulk(_SQL["keep"], blobs=True)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, str]]).decode


@dataclass(slots=True)
class Said:
    """Everything that was reported of one job."""

    progress: float | None = None
    doing: str | None = None
    lines: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def log(self) -> tuple[LogLine, ...]:
        return tuple(LogLine(moment(at), line) for at, line in self.lines)


def report(tx: Tx, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
    lease = leases.read(tx, token)
    if lease is None:
        return frozenset(position for position, _ in reports)
    keys = {position: key for position, key, _ in lease.open()}
    by_key = said_of(tx, {keys[position] for position, _ in reports if position in keys})
    for position, update in reports:
        if (key := keys.get(position)) is not None:
            _add(by_key.setdefault(key, Said()), update)
    _KEEP.insert(tx.cur, [(key, one.progress, one.doing, _encode(one.lines)) for key, one in sorted(by_key.items())])
    return frozenset(position for position, _ in reports if position not in keys)


def said_of(tx: Tx, keys: Iterable[int]) -> dict[int, Said]:
    rows = tx.cur.execute(_SQL["log"], (str(list(keys)),)).fetchall()
    return {key: Said(progress, doing, _decode(log)) for key, progress, doing, log in rows}


def _add(kept: Said, update: Report) -> None:
    if update.progress is not None:
        kept.progress = update.progress
    if update.note is not None:
        kept.doing = text(update.note)
    kept.lines = [*kept.lines, *((micros(line.at), text(line.text)) for line in update.lines)][-MAX_LOG:]
