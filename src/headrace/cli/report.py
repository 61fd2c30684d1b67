"""`headrace report`: failure rates, run times, the use of slots and the run seconds of tenants, over weeks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click
import msgspec

from headrace.cli import params
from headrace.cli.history import show_seconds
from headrace.cli.output import emit, say, table
from headrace.cli.target import Target, json_option, store_command

if TYPE_CHECKING:
    from headrace.operate.operations import Operations
    from headrace.operate.report import WorkReport

_BARS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 20
"""Characters of a bar of 100 %."""
_DAY: Final = 86_400
_NAMES: Final = {3600.0: "hour", 1.0 * _DAY: "day", 7.0 * _DAY: "week"}


@click.command()
@click.option("--since", type=params.PAST, default="30d", show_default=True, help='A time, or an age such as "90d".')
@click.option("--until", type=params.PAST, help="A time or an age. [default: now]")
@click.option("--queue", type=params.QUEUE, help="This queue only.")
@json_option
@store_command()
def command(target: Target, since: datetime, until: datetime | None, queue: str | None, as_json: bool) -> None:
    """Show how often each task failed, how long it ran, how busy the slots were, and which tenant used them."""

    async def act(operations: Operations) -> WorkReport:
        return await operations.report.read(since, until, queue=queue)

    report = target.operate(act)
    if as_json:
        emit(msgspec.to_builtins(report))
        return
    if not (report.items or report.tenants or (report.slots is not None and report.slots.steps)):
        say("no attempt ended in this time")
        return
    click.echo(f"from {_day(report.since)} to {_day(report.until)} UTC, by {_NAMES[report.step]}")
    _print_tasks(report)
    _print_slots(report)
    _print_tenants(report)


def _print_tasks(report: WorkReport) -> None:
    if not report.items:
        return
    click.echo("\nTasks")
    steps = sorted({step.at for task in report.items for step in task.steps})
    rows: list[tuple[object, ...]] = []
    for task in report.items:
        by_time = {step.at: step for step in task.steps}
        known = [by_time.get(at) for at in steps]
        rows.append(
            (
                task.task,
                task.count,
                _percent(task.failure_rate),
                sparkline([None if step is None else step.failure_rate for step in known], least=0.01),
                show_seconds(task.run.p50),
                show_seconds(task.run.p95),
                sparkline([None if step is None else step.run.p95 for step in known]),
            )
        )
    name = _NAMES[report.step]
    headers = ("task", "ended", "failed", f"failed by {name}", "run p50", "run p95", f"run p95 by {name}")
    table(headers, rows, right=(1, 2, 4, 5), cut={"task": 12}, drop=(headers[3], headers[6]))


def _print_slots(report: WorkReport) -> None:
    slots = report.slots
    if slots is None or not slots.steps:
        return
    click.echo(f"\nUse of slots: {_percent(slots.utilisation)}")
    name = f"{_NAMES[report.step]} from (UTC)"
    rows = [
        (
            _day(step.at),
            _length(step.busy_seconds),
            _length(step.available_seconds),
            _percent(step.utilisation),
            bar(step.utilisation),
        )
        for step in slots.steps
    ]
    table((name, "busy", "available", "used", ""), rows, right=(1, 2, 3), drop=("",))


def _print_tenants(report: WorkReport) -> None:
    if not report.tenants:
        return
    click.echo("\nRun time by tenant")
    rows = [
        (
            "(others)" if tenant.tenant is None else tenant.tenant or "(none)",
            _length(tenant.run_seconds),
            _percent(tenant.share),
            bar(tenant.share),
        )
        for tenant in report.tenants
    ]
    table(("tenant", "run time", "share", ""), rows, right=(1, 2), cut={"tenant": 12}, drop=("",))


def sparkline(values: Sequence[float | None], *, least: float = 0.0) -> str:
    """A line of bars, the largest value as the highest bar. `least`: a smaller largest value gives lower bars."""
    top = max((value for value in values if value is not None), default=0.0)
    top = max(top, least)
    return "".join(" " if value is None else _BARS[_height(value, top)] for value in values).rstrip()


def _height(value: float, top: float) -> int:
    return round(value / top * (len(_BARS) - 1)) if top else 0


def bar(share: float | None) -> str:
    """A bar whose full length is 100 %."""
    return "█" * round(min(share or 0.0, 1.0) * _WIDTH)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %" if 0 < share < 0.1 else f"{100 * share:.1f} %"


def _length(seconds: float) -> str:
    """Days and hours of long times, because seconds of weeks are hard to read."""
    if seconds < 600:
        return show_seconds(seconds)
    whole = timedelta(seconds=round(seconds))
    hours, rest = divmod(whole.seconds, 3600)
    return f"{whole.days} d {hours} h" if whole.days else f"{hours} h {rest // 60} min"


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
