"""`headrace prune`: drops finished jobs past their retention now, instead of waiting for a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from headrace.cli import params
from headrace.cli.filters import named
from headrace.cli.output import emit, progress
from headrace.cli.target import Target, json_option, store_command
from headrace.model.records import Retention
from headrace.operate.audit import of_retention
from headrace.policy.queue import dead_retentions

if TYPE_CHECKING:
    from headrace.operate.operations import Operations


@click.command()
@click.option("--done", type=params.DURATION, help="Keep done and cancelled jobs so long [default: keep_done].")
@click.option("--dead", type=params.DURATION, help="Keep dead jobs so long [default: keep_dead].")
@json_option
@store_command()
def command(target: Target, done: timedelta | None, dead: timedelta | None, as_json: bool) -> None:
    """Drop finished jobs past their retention now."""
    settings = target.settings
    # A time given here counts for all queues. Otherwise queues use their own.
    own = dead_retentions(target.app.queues) if target.app is not None and dead is None else {}
    keep = Retention(
        done=settings.keep_done if done is None else done,
        dead=settings.keep_dead if dead is None else dead,
        dead_by_queue=own,
    )

    async def act(operations: Operations) -> int:
        with progress("prune", quiet=as_json) as meter:
            return await operations.jobs.prune(keep, meter)

    gone = target.operate(act)
    if as_json:
        emit({"pruned": gone, "keep_done_s": params.seconds(keep.done), "keep_dead_s": params.seconds(keep.dead)})
    else:
        click.echo(f"pruned {named(gone)} ({of_retention(keep)})")
