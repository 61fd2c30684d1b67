"""`headrace queues`: every queue in figures; pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click

from headrace.cli import params, stats
from headrace.cli.output import emit_list
from headrace.cli.target import Target, json_option, store_command

if TYPE_CHECKING:
    from headrace.operate.operations import Operations


Command = TypeVar("Command", bound=Callable[..., object])


@click.group()
def command() -> None:
    """List, pause and resume queues."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """Every queue in figures."""
    stats.once(target, as_json=as_json)


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
