"""`headrace queues`: every queue in figures; pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from headrace.cli import params, stats
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.operate.queue_detail import QueueDetail, detail

if TYPE_CHECKING:
    from headrace.operate.operations import Operations
    from headrace.store.contract import Store


Command = TypeVar("Command", bound=Callable[..., object])


@click.group()
def command() -> None:
    """List, show, pause and resume queues."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """Every queue in figures."""
    stats.once(target, as_json=as_json)


@command.command()
@click.argument("name", type=params.QUEUE)
@json_option
@store_command()
def show(target: Target, name: str, as_json: bool) -> None:
    """Show which tenants and tasks wait and run in one queue, and which limits their jobs need."""

    async def look(store: Store) -> tuple[QueueDetail, datetime]:
        return await detail(store, name), await store.now()

    queue, now = run(target.with_store(look))
    if as_json:
        emit({"queue": name, **msgspec.to_builtins(queue, builtin_types=(datetime,))})
        return
    if not queue.tenants and not queue.tasks:
        say(f"{name}: no job waits or runs")
        return
    rows = [(one.tenant or "–", f"{one.ready:,}", age(one.oldest, now), f"{one.running:,}") for one in queue.tenants]
    table(("tenant", "ready", "oldest", "running"), rows, right=(1, 2, 3))
    if queue.all_tenants > len(queue.tenants):
        say(f"{queue.all_tenants - len(queue.tenants):,} more tenants")
    click.echo("")
    tasks = [(one.task, f"{one.ready:,}", f"{one.running:,}") for one in queue.tasks]
    table(("task", "ready", "running"), tasks, right=(1, 2))
    if queue.limits:
        click.echo(f"\nlimits: {', '.join(queue.limits)}")
    if not queue.whole:
        say("tasks, running jobs and limits are those of a part of the jobs, because the queue has many")


def until_options(function: Command) -> Command:
    """When a pause ends."""
    for option in (
        click.option("--until", type=params.MOMENT, help="It ends by itself at this time."),
        click.option("--for", "lasting", type=params.DURATION, help='It ends by itself after so long, e.g. "2h".'),
    ):
        function = option(function)
    return function


def end_of(until: datetime | None, lasting: timedelta | None) -> datetime | timedelta | None:
    """One of the two, or neither."""
    if until is not None and lasting is not None:
        raise click.UsageError("--until or --for, not both", click.get_current_context(silent=True))
    if lasting is not None and not lasting:
        raise click.UsageError("--for 0s pauses nothing: give a longer time", click.get_current_context(silent=True))
    return until if until is not None else lasting


_names = click.argument("names", nargs=-1, required=True, type=params.QUEUE)


@command.command()
@_names
@until_options
@json_option
@store_command()
def pause(
    target: Target, names: tuple[str, ...], lasting: timedelta | None, until: datetime | None, as_json: bool
) -> None:
    """No job of these queues starts until they are resumed; running ones go on."""
    _turn(target, names, paused=True, until=end_of(until, lasting), as_json=as_json)


@command.command()
@_names
@json_option
@store_command()
def resume(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Let the jobs of these queues start again."""
    _turn(target, names, paused=False, as_json=as_json)


def _turn(
    target: Target,
    names: tuple[str, ...],
    *,
    paused: bool,
    until: datetime | timedelta | None = None,
    as_json: bool,
) -> None:
    async def act(operations: Operations) -> None:
        for name in names:
            if paused:
                await operations.pauses.pause(name, until=until)
            else:
                await operations.pauses.resume(name)

    target.operate(act)
    if as_json:
        emit_list([{"kind": "queue", "name": name, "paused": paused} for name in names])
    else:
        for name in names:
            click.echo(f"{name}: {'paused' if paused else 'resumed'}")
