"""What commands print: one JSON document, a table, or progress; colours and bars only on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import click
import msgspec

from headrace.cli.columns import Column, fit
from headrace.model import duration

if TYPE_CHECKING:
    from rich.console import Console

NO_WIDTHS: Mapping[str, int] = {}

STYLES = {
    "ready": "cyan",
    "scheduled": "yellow",
    "blocked": "bright_black",
    "running": "blue",
    "done": "green",
    "dead": "red",
    "cancelled": "magenta",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
    "paused": "yellow",
}


def emit(document: object) -> None:
    """One JSON document on stdout, and nothing else."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    click.echo(_UNSEEN.sub(_escaped, text))


def emit_list(items: Sequence[object], *, next: object = None, **more: object) -> None:
    """A list as one JSON document. Every list has this shape, so that a script reads all of them alike.

    `next`: where the next page begins; None after the last page, and for lists that have one page.
    """
    emit({"items": items, "next": next, **more})


# Characters that a terminal may execute instead of showing them: controls, and changes of the text direction.
_UNSEEN = re.compile(r"[^\n\x20-\x7e]")


def _escaped(match: re.Match[str]) -> str:
    sign = match[0]
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """A console without markup and highlighting in users' texts."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def clean(text: object, *, lines: bool = False) -> str:
    """A text from outside, without characters that could move a terminal's cursor."""
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else "\ufffd" for c in str(text))


def short(text: object, width: int) -> str:
    """One line of at most `width` characters."""
    line = clean(" ".join(str(text).split()))
    return line if len(line) <= width else line[: width - 1] + "…"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[int] = (),
    cut: Mapping[str, int] = NO_WIDTHS,
    wrap: Mapping[str, int] = NO_WIDTHS,
    drop: Sequence[str] = (),
) -> None:
    """A table that fits the terminal; in a pipe, aligned columns that `cut` and `awk` can read.

    On a terminal, cells of the columns in `cut` may be shortened and cells in `wrap` may take several lines, down to these
    widths. If that is not enough, the columns in `drop` are left out, the first one first.
    """
    cells = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if on_terminal():
        _rich_table(headers, cells, right=right, cut=cut, wrap=wrap, drop=drop)
        return
    lines = [list(headers), *cells]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headers))]
    for line in lines:
        padded = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        click.echo("  ".join(padded).rstrip())


def _rich_table(
    headers: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    right: Sequence[int],
    cut: Mapping[str, int],
    wrap: Mapping[str, int],
    drop: Sequence[str],
) -> None:
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    columns = [
        Column(
            header,
            width=max(cell_len(text) for text in (header, *(row[place] for row in cells))),
            least=cut.get(header, wrap.get(header)),
            empty=not any(row[place] for row in cells),
        )
        for place, header in enumerate(headers)
    ]
    out = console()
    widths = fit(columns, out.width, drop)
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, collapse_padding=True)
    for place, width in widths.items():
        column = columns[place]
        grid.add_column(
            column.header,
            justify="right" if place in right else "left",
            width=width,
            no_wrap=column.header not in wrap,
            overflow="fold" if column.header in wrap else "ellipsis",
        )
    for row in cells:
        grid.add_row(*(Text(row[place], style=STYLES.get(row[place], "")) for place in widths))
    out.print(grid)


def say(message: str) -> None:
    """Print a remark on stderr, so that stdout has only data."""
    click.echo(message, err=True)


class Meter(Protocol):
    """How far long work has come; fits `store.contract.Progress`."""

    def __call__(self, done: int, total: int, what: str, /) -> None: ...


@contextmanager
def progress(title: str, *, quiet: bool = False, lines: bool = False) -> Generator[Meter]:
    """A progress bar on stderr while long work runs. Total 0: unknown.

    If stderr is not a terminal there is nothing, or with `lines` a line for each step.
    """
    if lines and not sys.stderr.isatty():

        def tell(done: int, total: int, what: str, /) -> None:
            if what:
                click.echo(f"{title}: {done}/{total} {what}", err=True)

        yield tell
        return
    if quiet or not sys.stderr.isatty():

        def silent(_done: int, _total: int, _what: str, /) -> None:
            return

        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(done: int, total: int, what: str, /) -> None:
            bar.update(task, completed=done, total=total or None, description=f"{title}: {what}" if what else title)

        yield show


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """The distance of a time from now, in one short word."""
    if moment is None:
        return ""
    gone = (now or datetime.now(UTC)) - moment
    return f"in {span(-gone)}" if gone < timedelta(0) else span(gone)


def span(length: timedelta | None, *, at_least: bool = False) -> str:
    """A duration for display: `350ms`, `12s`, `4m`, `3h`, `9d`; `≥ 4m` if it may be longer."""
    if length is None:
        return ""
    return f"≥ {duration.about(length)}" if at_least else duration.about(length)
