"""`headrace limits`: shows and changes at run time how many jobs run at once and how fast."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headrace.cli import ids, params
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.model import rate as rates
from headrace.operate.limits import LimitEntry, Limits, check_limit, figures
from headrace.task.limit import LimitFigures, describe
from headrace.task.limit_options import FIGURE_OPTIONS

if TYPE_CHECKING:
    from headrace.store.contract import Store

NAME = params.Checked("limit", check_limit)


@click.group()
def command() -> None:
    """List and show limits, set other figures, reset them, and remove those that no code declares any more."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """List every limit: what it allows, whether code or an operator set it, and whether it is closed."""

    async def look(store: Store) -> None:
        now = await store.now()
        entries = await Limits(store).all()
        if as_json:
            emit_list([_document(entry) for entry in entries.values()])
        elif entries:
            rows = [_row(entry, now) for entry in entries.values()]
            headers = ("limit", "allows", "declared", "set", "state")
            table(
                headers,
                rows,
                cut={"limit": 16, "declared": 16, "set": 16},
                wrap={"state": 16},
                drop=("declared", "set"),
            )
        else:
            say("no limits: declare one with @app.task(limits=[Limit(…)]) and start a worker")

    run(target.with_store(look))


@command.command()
@click.argument("name", type=NAME)
@click.option("--before", type=ids.JOB_ID, help="The next page: jobs older than this id.")
@json_option
@store_command()
def show(target: Target, name: str, before: ids.GivenId | None, as_json: bool) -> None:
    """Show one limit, or one key of it, with the running jobs that hold its units."""
    start = ids.whole_before(target, before)

    async def look(store: Store) -> None:
        limits = Limits(store)
        page = await limits.holders(name, before=start)
        entries = await limits.all()
        entry = entries.get(name) or entries[name.partition(":")[0]]
        if as_json:
            emit({**_document(entry), "name": name, **msgspec.structs.asdict(page)})
            return
        now = await store.now()
        held = ", ".join(f"{key} {units:,}" for key, units in page.held.items()) or "none"
        click.echo(f"{name}: {allows(entry)}; units held: {held}")
        if page.items:
            rows = [
                (ids.listed(one.id), one.task, one.key, one.units, one.tenant, age(one.since, now), one.worker or "")
                for one in page.items
            ]
            headers = ("id", "task", "key", "units", "tenant", "for", "worker")
            table(headers, rows, right=(3, 5), cut={"task": 20, "key": 20}, drop=("worker", "tenant"))
        if page.next:
            say(f"looked at {page.looked_at:,} running jobs; more: add --before {ids.listed(page.next)}")

    run(target.with_store(look))


@command.command("set")
@click.argument("name", type=NAME)
@params.declared(FIGURE_OPTIONS)
@json_option
@store_command()
def set_(target: Target, name: str, as_json: bool, **options: Any) -> None:
    """Other figures than the code's, at once and for every worker, until they are reset.

    NAME may be one key of a limit: shop:acme.
    """
    wanted = figures(name, **options)

    entry = target.operate(lambda operations: operations.limits.set(name, wanted))
    if as_json:
        emit(_document(entry))
    else:
        click.echo(f"{name}: {allows(entry)}")


@command.command()
@click.argument("name", type=NAME)
@json_option
@store_command()
def reset(target: Target, name: str, as_json: bool) -> None:
    """Back to the code's figures; one that was closed is open again."""
    entry = target.operate(lambda operations: operations.limits.reset(name))
    if as_json:
        emit({"name": name, "limit": None if entry is None else _document(entry)})
    else:
        own = f"no figures of its own, those of {name.partition(':')[0]} count"
        click.echo(f"{name}: " + (own if entry is None else allows(entry)))


@command.command()
@click.argument("name", type=NAME)
@json_option
@store_command()
def remove(target: Target, name: str, as_json: bool) -> None:
    """Forget a limit that no code declares any more, or one key's own figures.

    The limit no longer holds jobs back. A worker whose code still declares it stores it again at its start.
    """
    gone = target.operate(lambda operations: operations.limits.remove(name))
    if as_json:
        emit({"removed": gone})
    elif gone:
        click.echo(f"removed {', '.join(gone)}")
    else:
        click.echo(f"{name}: no figures of its own, nothing to remove")


def allows(entry: LimitEntry) -> str:
    """What a limit allows now, in a few words."""
    rule = entry.rule
    parts: list[str] = []
    if rule.rate is not None:
        parts.append(f"{rates.show(rule.rate)} burst {rule.burst:g}")
    if rule.concurrency is not None:
        parts.append(f"{rule.concurrency:,} at once")
    return ", ".join(parts) or "everything"


def _row(entry: LimitEntry, now: datetime) -> tuple[object, ...]:
    return (
        entry.name,
        allows(entry),
        "" if entry.declared is None else describe(entry.declared),
        "" if entry.override is None else describe(entry.override),
        _state(entry, now),
    )


def _state(entry: LimitEntry, now: datetime) -> str:
    until = entry.rule.closed_until
    if until is not None and until > now:
        return f"closed, opens {age(until, now)}"
    if entry.half_open:
        return "half open: one at a time until one succeeds"
    return "open" if entry.health.factor >= 1 else f"open at {entry.health.factor:.0%}"


def _document(entry: LimitEntry) -> dict[str, Any]:
    rule, health = entry.rule, entry.health
    return {
        "name": entry.name,
        "concurrency": rule.concurrency,
        "rate": rule.rate,
        "burst": rule.burst if rule.rate is not None else None,
        "declared": _figures(entry.declared),
        "override": _figures(entry.override),
        "closed_until": rule.closed_until,
        "half_open": entry.half_open,
        "factor": health.factor,
        "failures": health.failures,
    }


def _figures(values: LimitFigures | None) -> dict[str, Any] | None:
    return None if values is None else {name: getattr(values, name) for name in msgspec.structs.asdict(values)}
