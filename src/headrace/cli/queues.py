"""`headrace queues`: every queue in figures; pause and resume."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from headrace.cli import params, stats
from headrace.cli.output import emit
from headrace.cli.target import Target, json_option, run, store_command

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.group()
def command() -> None:
    """List, pause and resume queues."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """Every queue in figures."""
    stats.once(target, as_json=as_json)


_names = click.argument("names", nargs=-1, required=True, type=params.QUEUE)


@command.command()
@_names
@json_option
@store_command()
def pause(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """No job of these queues starts until they are resumed; running ones go on."""
    _turn(target, names, paused=True, as_json=as_json)


@command.command()
@_names
@json_option
@store_command()
def resume(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Let the jobs of these queues start again."""
    _turn(target, names, paused=False, as_json=as_json)


def _turn(target: Target, names: tuple[str, ...], *, paused: bool, as_json: bool) -> None:
    async def act(store: Store) -> None:
        for name in names:
            if paused:
                await store.pause(name, by=me())
            else:
                await store.resume(name)

    run(target.with_store(act))
    if as_json:
        emit([{"queue": name, "paused": paused} for name in names])
    else:
        for name in names:
            click.echo(f"{name}: {'paused' if paused else 'resumed'}")


def me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"  # a container's user may have no name
