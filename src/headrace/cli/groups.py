"""`headrace groups`: lists groups of jobs, shows one, and cancels its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli import params
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.model.gate import Gate, GateId
from headrace.operate.groups import group_view, parse_group

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.operate.operations import Operations
    from headrace.store.contract import Store

GROUP = params.Checked("group", parse_group)
HEADERS = ("group", "label", "size", "done", "dead", "cancelled", "to go", "state", "changed")


@click.group()
def command() -> None:
    """List groups of jobs, show one, and cancel its jobs."""


@command.command("list")
@click.option("--tenant", type=params.TENANT, help="Only groups of this tenant.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--before", type=GROUP, help="The next page: groups older than this id.")
@json_option
@store_command()
def list_(target: Target, tenant: str | None, limit: int, before: GateId | None, as_json: bool) -> None:
    """List groups, the newest first, with how their jobs ended."""

    async def look(store: Store) -> None:
        groups = await store.groups(tenant=tenant, before=before, limit=limit)
        following = groups[-1].id if len(groups) == limit else None
        if as_json:
            emit_list([group_view(group) for group in groups], next=following)
        elif groups:
            now = await store.now()
            rows = [_row(group, now) for group in groups]
            table(HEADERS, rows, right=(2, 3, 4, 5, 6), cut={"label": 16}, drop=("cancelled", "changed", "state"))
        else:
            say("no groups: app.open_group(…) makes one")

    run(target.with_store(look))


def _row(group: Gate, now: datetime) -> tuple[object, ...]:
    counts = group.counts
    figures = (counts.size, counts.done, counts.dead, counts.cancelled, counts.size - counts.ended)
    return (str(group.id), group.label, *(f"{count:,}" for count in figures), _state(group), age(group.changed_at, now))


def _state(group: Gate) -> str:
    return "ended" if group.over else "sealed" if group.sealed else "filling"


@command.command()
@click.argument("id", type=GROUP)
@json_option
@store_command()
def show(target: Target, id: GateId, as_json: bool) -> None:
    """Show one group: how many of its jobs have ended, and how."""

    async def act(operations: Operations) -> Gate:
        return await operations.groups.show(id)

    group = target.operate(act)
    if as_json:
        emit(group_view(group))
        return
    click.echo(f"{group.label}  {group.id}\n")
    for name, value in group_view(group).items():
        if name not in {"id", "label"} and value not in {None, ""}:
            click.echo(f"  {name.replace('_', ' '):<10} {value}")


@command.command()
@click.argument("id", type=GROUP)
@click.option("--reason", help="Why; the jobs show it.")
@json_option
@store_command()
def cancel(target: Target, id: GateId, reason: str | None, as_json: bool) -> None:
    """Cancel the jobs of a group that have not ended. Jobs that wait until all are done are cancelled, too."""

    async def act(operations: Operations) -> int:
        return await operations.groups.cancel(id, reason)

    cancelled = target.operate(act)
    if as_json:
        emit({"id": id, "cancelled": cancelled})
    else:
        click.echo(f"{cancelled:,} jobs cancelled or asked to stop")
