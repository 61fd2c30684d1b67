"""`headrace workers`: the workers seen within the last minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli.output import age, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@json_option
@store_command()
def command(target: Target, as_json: bool) -> None:
    """List the workers seen within the last minute."""

    async def look(store: Store) -> None:
        workers = sorted(await store.workers(), key=lambda worker: worker.name)
        if as_json:
            emit_list([msgspec.structs.asdict(worker) for worker in workers])
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
                age(worker.started_at, now),
                age(worker.seen_at, now),
                ", ".join(worker.hindered),
                worker.version,
                worker.id,
            )
            for worker in workers
        ]
        headers = ("worker", "queues", "slots", "up", "seen", "hindered", "version", "id")
        cut, drop = {"worker": 16, "queues": 12, "hindered": 12}, ("id", "version", "up", "seen")
        table(headers, rows, right=(2, 3, 4), cut=cut, drop=drop)

    run(target.with_store(look))
