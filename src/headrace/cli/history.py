"""`headrace history`: what became of attempts over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.operate.history import HistoryBy, HistoryOperations, HistoryPoint

if TYPE_CHECKING:
    from headrace.store.contract import Store


_HEADERS = (
    "from (UTC)",
    "ended",
    "failed",
    "dead",
    *(f"{what} {share}" for what in ("wait", "run") for share in ("p50", "p95", "p99")),
)


@click.command()
@click.option(
    "--by",
    type=click.Choice(["queue", "task", "end"]),
    default="queue",
    show_default=True,
    help="What the lines are divided by.",
)
@click.option("--since", type=params.PAST, default="1h", show_default=True, help='A time, or an age such as "7d".')
@click.option("--until", type=params.PAST, help="A time or an age. [default: now]")
@click.option(
    "--step",
    type=params.STEP,
    help='The length of a step, or "all" for one step of the whole time. [default: fits the length of time]',
)
@click.option("--queue", help="This queue only.")
@click.option("--task", help="This task only.")
@json_option
@store_command()
def command(
    target: Target,
    by: HistoryBy,
    since: datetime,
    until: datetime | None,
    step: timedelta | Literal["all"] | None,
    queue: str | None,
    task: str | None,
    as_json: bool,
) -> None:
    """Show how many attempts ended in which way over time, with percentiles of wait and run time."""

    async def look(store: Store) -> None:
        history = HistoryOperations(store)
        answer = await history.read(since, until, by=by, step=step, queue=queue, task=task)
        points = answer.items
        while answer.next is not None:
            answer = await history.read(answer.next, until, by=by, step=_length(answer.step), queue=queue, task=task)
            points += answer.items
        if as_json:
            emit_list([msgspec.to_builtins(point) for point in points], step=answer.step)
        elif not points:
            say("no attempt ended in this time")
        else:
            table(
                (*_HEADERS[:1], by, *_HEADERS[1:]),
                [_row(point) for point in points],
                right=tuple(range(2, 11)),
                cut={by: 12},
                drop=("wait p95", "run p95", "wait p50", "run p50"),
            )

    run(target.with_store(look))


def _row(point: HistoryPoint) -> tuple[object, ...]:
    return (
        f"{point.at.astimezone(UTC):%Y-%m-%d %H:%M}",
        point.name,
        point.count,
        point.ends.get("failed", 0),
        point.ends.get("dead", 0),
        *(show_seconds(share) for times in (point.wait, point.run) for share in (times.p50, times.p95, times.p99)),
    )


def show_seconds(seconds: float | None) -> str:
    """In the unit that gives the fewest figures."""
    if seconds is None:
        return "-"
    for unit, factor in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 1000 * factor or unit == "s":
            return f"{seconds / factor:.3g} {unit}" if seconds / factor < 1000 else f"{seconds / factor:.0f} {unit}"
    return ""


def _length(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
