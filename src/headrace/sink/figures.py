"""The state of the sinks of a store, for `headrace doctor` and for the metrics of the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from headrace.model.records import Finding
from headrace.sink.address import parse
from headrace.sink.state import read_states
from headrace.store.contract import Store

LATE: Final = 60.0
"""Seconds behind the store from which `headrace doctor` warns. Usually it is a few seconds."""


class SinkFigures(NamedTuple):
    """One table that this store's ends go to."""

    name: str
    rows: int
    lag: float
    """Seconds by which the table is behind."""
    error: str
    """Why the last attempt to write failed. Empty: it worked."""


async def read_sinks(store: Store) -> list[SinkFigures]:
    """The figures of every sink of this store."""
    states = await read_states(store)
    if not states:
        return []
    now = await store.now()
    return [
        SinkFigures(name, state.rows, state.lag(now), state.error)
        for name, (_, state) in sorted(states.items(), key=lambda entry: entry[0])
        if state is not None
    ]


async def check_sink(store: Store, url: str) -> list[Finding]:
    """What an operator should know about the sink of `history_url`."""
    name, about = parse(url).shown, "history sink"
    figures = next((sink for sink in await read_sinks(store) if sink.name == name), None)
    if figures is None:
        hint = "a worker with this history_url, or `headrace sink`, does it"
        return [Finding("warning", about, f"no process has written to {name} so far: {hint}")]
    state = f"{figures.rows} rows written to {name}, {figures.lag:.0f} s behind"
    if figures.error:
        return [Finding("warning", about, f"{state}; the last attempt failed: {figures.error}")]
    return [Finding("ok" if figures.lag < LATE else "warning", about, state)]


_PLAIN: Final = re.compile(r"[^\w.:/\[\]-]", re.ASCII)
"""Signs that no address has. A record of the store may have been written by another program."""
_METRICS: Final[tuple[tuple[str, str, str, Callable[[SinkFigures], float]], ...]] = (
    ("headrace_sink_rows_total", "counter", "Rows written to ClickHouse.", lambda sink: sink.rows),
    ("headrace_sink_lag_seconds", "gauge", "How far the table is behind the store.", lambda sink: round(sink.lag, 3)),
    ("headrace_sink_failing", "gauge", "1: the last attempt to write failed.", lambda sink: int(bool(sink.error))),
)


def exposition(sinks: Sequence[SinkFigures]) -> str:
    """The figures in Prometheus' text format. Empty without a sink."""
    lines: list[str] = []
    for name, kind, help_, read in _METRICS if sinks else ():
        lines += [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{table="{_PLAIN.sub("_", sink.name)}"}} {read(sink)}' for sink in sinks]
    return "".join(f"{line}\n" for line in lines)
