"""`headrace events`: signal an event that tasks wait for, and show one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit
from headrace.cli.target import Target, json_option, store_command

if TYPE_CHECKING:
    from headrace.model.gate import Gate

_tenant = click.option("--tenant", type=params.TENANT, default="", help="The tenant of the jobs that wait.")


@click.group()
def command() -> None:
    """Signal events that tasks wait for."""


@command.command()
@click.argument("name")
@click.argument("key")
@click.option("--value", metavar="JSON", default="null", help="The value, as JSON. Left out: null.")
@_tenant
@click.option(
    "--queue",
    type=params.QUEUE,
    help="A queue of the tasks that wait. Left out: the one with which the app declares the event, else default. It matters on a Redis cluster only.",
)
@json_option
@store_command()
def signal(target: Target, name: str, key: str, value: str, tenant: str, queue: str | None, as_json: bool) -> None:
    """Give a value to the jobs that wait for event NAME of KEY, and to those that will. The first value stays."""
    given = params.read_json(value, "--value")
    declared = None if target.app is None else target.app.events.get(name)
    first: bool = target.operate(
        lambda operations: operations.events.signal(name, key, given, tenant=tenant, queue=queue, declared=declared)
    )
    if as_json:
        emit({"name": name, "key": key, "signalled": first})
    else:
        click.echo(f"event {name} of {key}: {'signalled' if first else 'had a value already, which stays'}")


@command.command()
@click.argument("name")
@click.argument("key")
@_tenant
@json_option
@store_command()
def show(target: Target, name: str, key: str, tenant: str, as_json: bool) -> None:
    """Show whether event NAME of KEY was signalled, and its value."""
    from headrace.operate.events import shown_value

    gate: Gate | None = target.operate(lambda operations: operations.events.show(name, key, tenant=tenant))
    came = gate is not None and gate.value is not None
    value = None if gate is None else shown_value(gate)
    if as_json:
        emit({"name": name, "key": key, "signalled": came, "value": value})
    elif came:
        click.echo(f"event {name} of {key}: {msgspec.json.encode(value).decode()}")
    else:
        waits = "jobs may wait for it" if gate is not None else "no job waits for it"
        click.echo(f"event {name} of {key}: not signalled; {waits}")
