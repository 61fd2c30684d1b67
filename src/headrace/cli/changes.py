"""`headrace changes`: what operators did, which workers started, and which failures are new."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit_list, say, short, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.operate.changes import changes

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@click.option("--since", type=params.PAST, default="1h", show_default=True, help='A time, or an age such as "1h".')
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many changes.")
@json_option
@store_command()
def command(target: Target, since: datetime, limit: int, as_json: bool) -> None:
    """List what changed lately: what operators did, workers that started, and new failures, the newest first."""

    async def look(store: Store) -> None:
        items = await changes(store, since, limit=limit)
        if as_json:
            emit_list([msgspec.structs.asdict(change) for change in items])
        elif not items:
            say("nothing changed")
        else:
            rows = [
                (
                    f"{change.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                    change.action,
                    short(change.what, 80),
                    change.by,
                    change.jobs or "",
                )
                for change in items
            ]
            table(
                ("when (UTC)", "change", "what", "by", "jobs"),
                rows,
                right=(4,),
                cut={"by": 12, "what": 20},
                drop=("jobs", "by"),
            )

    run(target.with_store(look))
