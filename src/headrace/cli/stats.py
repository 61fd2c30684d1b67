"""`headrace stats`: every queue in figures, once or live."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import params
from headrace.cli.output import emit_list, say, span, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import StoreError
from headrace.model.duration import LONGEST
from headrace.model.records import QueueStats
from headrace.operate.autoscale import AutoscaleOperations, QueueDemand, closed_queues

if TYPE_CHECKING:
    from headrace.store.contract import Store

HEADERS = ("queue", "ready", "scheduled", "blocked", "running", "dead", "done", "failed", "oldest", "drains in", "")
COUNTS = ("ready", "scheduled", "blocked", "running", "dead", "done_total", "failed_total", "enqueued_total")


@click.command()
@click.option("--watch", is_flag=True, help="Go on, with rates, until Ctrl-C.")
@click.option("--every", type=params.DURATION, default="1s", show_default=True, help="How often with --watch.")
@json_option
@store_command()
def command(target: Target, watch: bool, every: timedelta, as_json: bool) -> None:
    """Every queue in figures, once or live."""
    if watch and as_json:
        raise click.UsageError(
            "--json answers one document, --watch never ends: choose one", click.get_current_context(silent=True)
        )
    if not watch:
        once(target, as_json=as_json)
        return
    from headrace.cli.view import watch_store

    async def look(store: Store) -> None:
        await watch_store(store, every=max(every.total_seconds(), 0.1))

    with contextlib.suppress(KeyboardInterrupt):
        run(target.with_store(look))


def once(target: Target, *, as_json: bool) -> None:
    """The figures now."""

    async def look(store: Store) -> tuple[list[QueueStats], dict[str, QueueDemand]]:
        queues = sorted((await store.stats()).queues, key=lambda queue: queue.queue)
        return queues, await _demands(target, store, queues)

    queues, demands = run(target.with_store(look))
    if as_json:
        emit_list([document(queue, demands.get(queue.queue)) for queue in queues], total=totals(queues))
        return
    if not queues:
        say("no queues: nothing was ever enqueued here")
        return
    rows: list[tuple[object, ...]] = [
        (
            queue.queue,
            f"{queue.ready:,}",
            f"{queue.scheduled:,}",
            f"{queue.blocked:,}",
            f"{queue.running:,}",
            f"{queue.dead:,}",
            f"{queue.done_total:,}",
            f"{queue.failed_total:,}",
            span(queue.oldest_ready, at_least=queue.oldest_at_least),
            _drains_in(demands.get(queue.queue)),
            "paused" if queue.paused else "",
        )
        for queue in queues
    ]
    table(
        HEADERS,
        rows,
        right=tuple(range(1, 10)),
        cut={"queue": 16},
        drop=("drains in", "failed", "done", "oldest", "blocked"),
    )


async def _demands(target: Target, store: Store, queues: list[QueueStats]) -> dict[str, QueueDemand]:
    """What each queue needs. Empty if the store does not tell, because the figures are worth more than the estimate."""
    closed = closed_queues(target.app.queues.values()) if target.app is not None else ()
    try:
        answer = await AutoscaleOperations(store).read(queues, slots=target.settings.concurrency, closed=closed)
    except StoreError:
        # A token may lack the right to read history, and an older server does not have it.
        return {}
    return {demand.queue: demand for demand in answer.items}


def _drains_in(demand: QueueDemand | None) -> str:
    seconds = None if demand is None or not demand.ready else demand.seconds_to_drain
    return "" if seconds is None else span(timedelta(seconds=min(seconds, LONGEST.total_seconds())))


def document(queue: QueueStats, demand: QueueDemand | None) -> dict[str, Any]:
    """One queue as JSON."""
    fields: dict[str, Any] = {"queue": queue.queue, "paused": queue.paused}
    fields |= {name: getattr(queue, name) for name in COUNTS}
    fields["oldest_ready_s"] = params.seconds(queue.oldest_ready)
    fields["oldest_at_least"] = queue.oldest_at_least
    fields["seconds_to_drain"] = None if demand is None else demand.seconds_to_drain
    fields["workers"] = None if demand is None else demand.workers
    return fields


def totals(queues: list[QueueStats]) -> dict[str, int]:
    """All queues together."""
    return {name: sum(getattr(queue, name) for queue in queues) for name in COUNTS}
