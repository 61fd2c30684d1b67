"""`headrace workers`: the workers seen within the last minute, and orders to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from headrace.cli.output import age, emit_list, say, table
from headrace.cli.root import FAILED
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import ConfigError, HeadraceError
from headrace.operate.workers import orders_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.model.lease import Presence, WorkerOrder
    from headrace.operate.operations import Operations
    from headrace.operate.workers import OrderVerb
    from headrace.store.contract import Store


class _ListsByDefault(click.Group):
    """`headrace workers` alone lists, because that is what it is called for most."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListsByDefault)
def command() -> None:
    """List workers, and tell one to be quiet, to go on or to drain."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """List the workers seen within the last minute."""

    async def look(store: Store) -> None:
        workers = sorted(await store.workers(), key=lambda worker: worker.name)
        orders = await _orders(store) if workers else {}
        if as_json:
            emit_list([_document(worker, orders.get(str(worker.id))) for worker in workers])
            return
        if not workers:
            say("no workers: start one with `headrace worker APP`")
            return
        now = await store.now()
        rows = [
            (
                worker.name,
                ", ".join(worker.queues),
                f"{worker.running}/{worker.slots}",
                "" if worker.memory is None else f"{worker.memory >> 20:,} MB",
                age(worker.started_at, now),
                age(worker.seen_at, now),
                ", ".join(worker.hindered),
                "" if (order := orders.get(str(worker.id))) is None else f"{order.kind} by {order.by}",
                worker.version,
                worker.id,
            )
            for worker in workers
        ]
        headers = ("worker", "queues", "slots", "memory", "up", "seen", "hindered", "order", "version", "id")
        cut, drop = {"worker": 16, "queues": 12, "hindered": 12}, ("id", "version", "up", "seen", "order", "memory")
        table(headers, rows, right=(2, 3, 4, 5), cut=cut, drop=drop)

    run(target.with_store(look))


def _document(worker: Presence, order: WorkerOrder | None) -> dict[str, Any]:
    return msgspec.structs.asdict(worker) | {
        "order": None if order is None else order.kind,
        "ordered_by": None if order is None else order.by,
    }


async def _orders(store: Store) -> dict[str, WorkerOrder]:
    """A token without the scope `operate` does not see orders, and lists workers nevertheless."""
    try:
        return await orders_of(store)
    except HeadraceError:
        return {}


_workers = click.argument("workers", metavar="ID...", nargs=-1, required=True)


@command.command()
@_workers
@json_option
@store_command()
def quiet(target: Target, workers: tuple[str, ...], as_json: bool) -> None:
    """Claim nothing more until `resume`; running jobs continue. ID: an id or a name of the list."""
    _give(target, workers, "quiet", as_json=as_json)


@command.command()
@_workers
@json_option
@store_command()
def resume(target: Target, workers: tuple[str, ...], as_json: bool) -> None:
    """Let quiet workers claim jobs again."""
    _give(target, workers, "resume", as_json=as_json)


@command.command()
@_workers
@json_option
@store_command()
def drain(target: Target, workers: tuple[str, ...], as_json: bool) -> None:
    """Let workers finish their running jobs and end. This cannot be taken back."""
    _give(target, workers, "drain", as_json=as_json)


def _give(target: Target, names: Sequence[str], verb: OrderVerb, *, as_json: bool) -> None:
    async def act(operations: Operations) -> list[tuple[str, Presence | None]]:
        chosen = [_named(name, await operations.store.workers()) for name in names]
        return [
            (name, None if worker is None else await operations.workers.order(worker.id, verb))
            for name, worker in zip(names, chosen, strict=True)
        ]

    answers = target.operate(act)
    words = {"quiet": "claims nothing more", "resume": "goes on", "drain": "drains and ends"}
    if as_json:
        emit_list([{"id": worker.id, "name": worker.name} for _, worker in answers if worker is not None])
    for name, worker in answers:
        if worker is None:
            say(f"no worker {name} was seen within the last minute: see `headrace workers`")
        elif not as_json:
            click.echo(f"{worker.name} {words[verb]}, with its next heartbeat")
    if any(worker is None for _, worker in answers):
        raise SystemExit(FAILED)


def _named(name: str, workers: Sequence[Presence]) -> Presence | None:
    """The worker with this id, the beginning of an id, or name. Raises ConfigError if there are several."""
    matches = [worker for worker in workers if worker.name == name or str(worker.id).startswith(name.lower())]
    if len(matches) > 1:
        ids = ", ".join(str(worker.id) for worker in matches[:5])
        raise ConfigError(f"{name} may mean {len(matches)} workers: {ids}")
    return matches[0] if matches else None
