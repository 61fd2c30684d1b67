"""The live view: a screen on a terminal, one line per snapshot everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import click

from headrace.cli import show
from headrace.cli.board import Board, rate, sparkline
from headrace.cli.output import age, console, on_terminal, short, span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from headrace.store.contract import Store

JOBS = 6
"""How many running, retrying and dead jobs are listed."""

_COUNTS = ("ready", "scheduled", "running", "dead")
_COLOURS = {"ready": "cyan", "scheduled": "yellow", "running": "blue", "dead": "red"}


class Screen(Protocol):
    """Shows snapshots."""

    def __call__(self, board: Board, /) -> None: ...


@contextmanager
def screen(title: str) -> Generator[Screen]:
    """A screen for a terminal, or lines for a pipe."""
    if not on_terminal():
        yield print_line
        return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:

        def draw(board: Board, /) -> None:
            live.update(render(board, title), refresh=True)

        yield draw


async def watch_store(store: Store, *, every: float) -> None:
    """Queues and rates until cancelled."""
    board = Board()
    with screen("headrace stats — Ctrl-C ends") as draw:
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


def render(board: Board, title: str) -> RenderableType:
    """The whole screen."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_head(board, title), _queues(board)]
    if board.now is not None:
        parts.extend(_lists(board, board.now))
    if board.trouble:
        parts.append(Text(f"store: {short(board.trouble, 200)}", style="bold red"))
    return Group(*parts)


def _head(board: Board, title: str) -> RenderableType:
    from rich.text import Text

    rates = board.rates
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(title, style="bold")
    head.append("\n\n  throughput ", style="dim")
    head.append(sparkline(board.history) or "▁", style="green")
    head.append(f"  {rate(rates.done)}/s done", style="green")
    head.append(f"   {rate(rates.enqueued)}/s enqueued", style="cyan")
    head.append(f"   {rate(rates.failed)}/s failed\n", style="red" if rates.failed else "dim")
    return head


def _grid() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, header_style="bold dim", pad_edge=True, expand=False)


def _queues(board: Board) -> RenderableType:
    from rich.text import Text

    grid = _grid()
    grid.add_column("queue", min_width=12)
    for name in (*_COUNTS, "enq/s", "done/s", "fail/s", "done", "oldest"):
        grid.add_column(name, justify="right", min_width=7)
    for queue in board.queues:
        rates = board.by_queue.get(queue.queue)
        grid.add_row(
            Text(queue.queue + (" (paused)" if queue.paused else ""), style="yellow" if queue.paused else "bold"),
            *(_count(getattr(queue, name), _COLOURS[name]) for name in _COUNTS),
            rate(rates.enqueued) if rates else "",
            rate(rates.done) if rates else "",
            rate(rates.failed) if rates else "",
            f"{queue.done_total:,}",
            span(queue.oldest_ready, at_least=queue.oldest_at_least),
        )
    return grid


def _count(value: int, colour: str) -> RenderableType:
    from rich.text import Text

    return Text(f"{value:,}", style=colour if value else "dim")


def _lists(board: Board, now: datetime) -> Iterator[RenderableType]:
    running = [(job.task, f"attempt {job.attempt}", f"for {age(job.claimed_at, now)}") for job in board.running]
    retrying = [
        (job.task, f"failed {job.failures}×", f"again {age(job.run_at, now)}" if job.run_at else "now")
        for job in board.retrying
    ]
    dead = [(job.task, f"failed {job.failures}×", short(show.reason(job), 110)) for job in board.dead]
    for name, colour, rows in (("running", "blue", running), ("retrying", "yellow", retrying), ("dead", "red", dead)):
        if rows:
            yield _list(name, colour, rows)


def _list(name: str, colour: str, rows: list[tuple[str, str, str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=9)
    for _ in range(3):
        grid.add_column(no_wrap=True, overflow="ellipsis")
    for place, row in enumerate(rows):
        grid.add_row(
            Text(f" {name}" if place == 0 else "", style=f"bold {colour}"), *(Text(short(cell, 110)) for cell in row)
        )
    grid.add_row("")
    return grid
