"""The live view: a screen on a terminal, one line per snapshot everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from headrace.cli import limits, show
from headrace.cli.board import Board, rate, sparkline
from headrace.cli.columns import Column, fit
from headrace.cli.output import age, clean, console, on_terminal, short, span
from headrace.model.short_id import shorten

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from headrace.model.job import Job
    from headrace.model.records import QueueStats
    from headrace.store.contract import Store

JOBS = 6
"""How many running, retrying and dead jobs are listed."""

_LABEL = 9
_LEAST = 12
_RATE_LINES, _HEADER_LINES = 3, 2
"""Lines of the parts of the screen whose height is fixed."""

_COUNTS = ("ready", "scheduled", "blocked", "running", "dead")
_COLOURS = {"ready": "cyan", "scheduled": "yellow", "blocked": "bright_black", "running": "blue", "dead": "red"}


class Screen(Protocol):
    """Shows snapshots."""

    def __call__(self, board: Board, /) -> None: ...


@contextmanager
def screen(*title: str) -> Generator[Screen]:
    """A screen for a terminal, or lines for a pipe. The parts of the title go into as few lines as they fit."""
    if not on_terminal():
        yield print_line
        return
    from rich.live import Live

    out = console()
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(board: Board, /) -> None:
            live.update(render(board, title, width=out.width, height=out.height), refresh=True)

        yield draw


async def watch_store(store: Store, *, every: float) -> None:
    """Queues and rates until cancelled."""
    board = Board()
    with screen("headrace stats", "Ctrl-C ends") as draw:
        while True:
            await board.look(store, jobs=0)
            draw(board)
            await asyncio.sleep(every)


def print_line(board: Board, /) -> None:
    """One snapshot as one line."""
    if board.trouble:
        click.echo(f"store: {short(board.trouble, 200)}")
        return
    counts = "  ".join(f"{name} {board.total(name)}" for name in _COUNTS)
    rates = board.rates
    clock = board.now.strftime("%H:%M:%S") if board.now else ""
    click.echo(
        f"{clock}  {counts}  |  enqueued {rate(rates.enqueued)}/s  done {rate(rates.done)}/s"
        f"  failed {rate(rates.failed)}/s  |  done in all {board.total('done_total')}"
    )


def render(board: Board, title: Sequence[str], *, width: int, height: int) -> RenderableType:
    """The whole screen, within so many characters and lines."""
    from rich.console import Group
    from rich.text import Text

    head = _title(title, width)
    parts: list[RenderableType] = [Text("\n".join(head), style="bold"), _rates(board, width), _queues(board, width)]
    remarks = [] if board.now is None else list(_remarks(board, board.now, width))
    used = len(head) + _RATE_LINES + _HEADER_LINES + len(board.queues) + len(remarks) + (1 if remarks else 0)
    if board.now is not None:
        parts.extend(_lists(board, board.now, width, height - used - (1 if board.trouble else 0)))
    if remarks:
        parts.append(Text("\n" + "\n".join(remarks), style="dim", no_wrap=True, overflow="ellipsis"))
    if board.trouble:
        parts.append(Text(f"store: {short(board.trouble, 200)}", style="bold red", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _title(parts: Sequence[str], width: int) -> list[str]:
    """The parts in as few lines as they fit. A part is never broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f" — {part}"
        else:
            lines.append(part)
    return lines


def _rates(board: Board, width: int) -> RenderableType:
    from rich.text import Text

    rates = board.rates
    figures = (
        (f"  {rate(rates.done)}/s done", "green"),
        (f"   {rate(rates.enqueued)}/s enqueued", "cyan"),
        (f"   {rate(rates.failed)}/s failed", "red" if rates.failed else "dim"),
    )
    # The figures matter more than the past, so the sparkline gets what they leave.
    room = max(1, width - len("  throughput ") - sum(len(text) for text, _ in figures))
    line = Text("\n", no_wrap=True, overflow="ellipsis")
    line.append("  throughput ", style="dim")
    line.append((sparkline(board.history) or "▁")[-room:], style="green")
    for text, style in figures:
        line.append(text, style=style)
    line.append("\n")
    return line


def _queues(board: Board, width: int) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headers = ("queue", *_COUNTS, "enq/s", "done/s", "fail/s", "done", "oldest")
    rows = [_queue_row(board, queue) for queue in board.queues]
    columns = [
        Column(
            header,
            max(_LEAST if place == 0 else len(header), *(len(row[place]) for row in rows), 0),
            least=None if place else _LEAST,
        )
        for place, header in enumerate(headers)
    ]
    widths = fit(columns, width - 1, ("enq/s", "done", "fail/s", "oldest", "done/s"))
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold dim", pad_edge=False, show_edge=False, collapse_padding=True)
    for place, space in widths.items():
        side: JustifyMethod = "right" if place else "left"
        grid.add_column(headers[place], justify=side, width=space, no_wrap=True, overflow="ellipsis")
    for queue, row in zip(board.queues, rows, strict=True):
        styles = ("yellow" if queue.paused else "bold", *(_style(queue, name) for name in _COUNTS), *[""] * 5)
        grid.add_row(*(Text(row[place], style=styles[place]) for place in widths))
    return grid


def _queue_row(board: Board, queue: QueueStats) -> tuple[str, ...]:
    rates = board.by_queue.get(queue.queue)
    return (
        clean(queue.queue) + (" (paused)" if queue.paused else ""),
        *(f"{getattr(queue, name):,}" for name in _COUNTS),
        *((rate(rates.enqueued), rate(rates.done), rate(rates.failed)) if rates else ("", "", "")),
        f"{queue.done_total:,}",
        span(queue.oldest_ready, at_least=queue.oldest_at_least),
    )


def _style(queue: QueueStats, name: str) -> str:
    return _COLOURS[name] if getattr(queue, name) else "dim"


def _lists(board: Board, now: datetime, width: int, height: int) -> Iterator[RenderableType]:
    running = [(_named(job), f"attempt {job.attempt}", f"for {age(job.claimed_at, now)}") for job in board.running]
    retrying = [
        (_named(job), f"failed {job.failures}×", f"again {age(job.run_at, now)}" if job.run_at else "now")
        for job in board.retrying
    ]
    dead = [(_named(job), f"failed {job.failures}×", show.cause(job)) for job in board.dead]
    lists = [("running", "blue", running), ("retrying", "yellow", retrying), ("dead", "red", dead)]
    filled = [part for part in lists if part[2]]
    # One blank line before each list. A low terminal shows the beginning of each list, not the first list alone.
    each_gets = max(1, height // len(filled) - 1) if filled else 0
    for name, colour, rows in filled:
        yield _list(name, colour, rows[:each_gets], width)


def _remarks(board: Board, now: datetime, width: int) -> Iterator[str]:
    """One line each about pauses, limits and schedules, and commands that show more."""
    from headrace.cli.schedules import next_of

    for name, parts in (
        (
            "paused",
            [f"{pause.kind} {pause.name}, ends {age(pause.until, now) or 'when resumed'}" for pause in board.pauses],
        ),
        ("limits", [f"{limit.name} {limits.allows(limit)}" for limit in board.limits]),
        (
            "schedules",
            [f"{entry.schedule.name} {age(next_of(entry, now), now) or 'paused'}" for entry in board.schedules],
        ),
        ("try", [f"headrace {command}" for command in _commands(board)]),
    ):
        if parts:
            yield _joined(f" {name:<{_LABEL}} ", [clean(part) for part in parts], width - 1)


def _commands(board: Board) -> Iterator[str]:
    if board.waiting is not None:
        yield f"jobs explain {shorten(board.waiting.id)}"
    if board.dead:
        yield "dead list"
    if board.limits:
        yield "limits list"
    yield "jobs list"


def _joined(line: str, parts: Sequence[str], width: int) -> str:
    """As many parts as fit into one line."""
    for place, part in enumerate(parts):
        longer = f"{line}{'; ' if place else ''}{part}"
        if place and len(longer) > width:
            break
        line = longer
    return line


def _named(job: Job) -> str:
    return f"{job.task} {job.tenant}" if job.tenant else job.task


def _list(name: str, colour: str, rows: Sequence[tuple[str, str, str]], width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    cells = [tuple(short(cell, 110) for cell in row) for row in rows]
    columns = [
        Column("", _LABEL),
        *(Column("", max(len(row[place]) for row in cells), least=None if place == 1 else 16) for place in range(3)),
    ]
    widths = fit(columns, width - 1)
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    for space in widths.values():
        grid.add_column(width=space, no_wrap=True, overflow="ellipsis")
    grid.add_row("")
    for place, row in enumerate(cells):
        label = Text(f" {name}" if place == 0 else "", style=f"bold {colour}")
        grid.add_row(label, *(Text(cell) for cell in row))
    return grid
