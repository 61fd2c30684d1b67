"""`headrace pause`, `resume` and `pauses`: pause and resume a queue, a task or a tenant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli import params
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.queues import end_of, until_options
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import ConfigError
from headrace.operate.pauses import pausable

if TYPE_CHECKING:
    from headrace.model.records import PauseKind
    from headrace.store.contract import Store

Command = TypeVar("Command", bound=Callable[..., object])


def _what(function: Command) -> Command:
    for option in (
        click.option("--tenant", type=params.TENANT, help="All jobs of this tenant, in any queue."),
        click.option("--task", type=params.TASK, help="All jobs of this task."),
        click.option("--queue", type=params.QUEUE, help="All jobs of this queue."),
    ):
        function = option(function)
    return function


def _chosen(queue: str | None, task: str | None, tenant: str | None) -> tuple[str, PauseKind]:
    try:
        return pausable(queue, task, tenant)
    except ConfigError:
        context = click.get_current_context(silent=True)
        raise click.UsageError("give one of --queue, --task and --tenant", context) from None


@click.command()
@_what
@until_options
@json_option
@store_command()
def pause(
    target: Target,
    queue: str | None,
    task: str | None,
    tenant: str | None,
    until: datetime | None,
    lasting: timedelta | None,
    as_json: bool,
) -> None:
    """Start no job of a queue, a task or a tenant; what runs goes on."""
    name, kind = _chosen(queue, task, tenant)
    end = end_of(until, lasting)
    target.operate(lambda operations: operations.pauses.pause(name, kind=kind, until=end))
    _say(name, kind, paused=True, as_json=as_json)


@click.command()
@_what
@json_option
@store_command()
def resume(target: Target, queue: str | None, task: str | None, tenant: str | None, as_json: bool) -> None:
    """Let the jobs of a queue, a task or a tenant start again."""
    name, kind = _chosen(queue, task, tenant)
    target.operate(lambda operations: operations.pauses.resume(name, kind=kind))
    _say(name, kind, paused=False, as_json=as_json)


def _say(name: str, kind: PauseKind, *, paused: bool, as_json: bool) -> None:
    if as_json:
        emit({"kind": kind, "name": name, "paused": paused})
    else:
        click.echo(f"{kind} {name}: {'paused' if paused else 'resumed'}")


@click.command()
@json_option
@store_command()
def command(target: Target, as_json: bool) -> None:
    """List what is paused, with the author, the start and the end of each pause."""

    async def look(store: Store) -> None:
        now = await store.now()
        entries = await store.pauses()
        if as_json:
            emit_list(entries)
        elif entries:
            rows = [
                (pause.kind, pause.name, pause.by, age(pause.since, now), age(pause.until, now)) for pause in entries
            ]
            table(("what", "name", "by", "since", "ends"), rows, cut={"name": 16, "by": 12})
        else:
            say("nothing is paused")

    run(target.with_store(look))
