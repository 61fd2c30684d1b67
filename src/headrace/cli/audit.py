"""`headrace audit`: what operators did. Commands that change something write an entry here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit_list, say, short, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.store.audit import Audit

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@click.option("--since", type=params.PAST, default="7d", show_default=True, help='A time, or an age such as "7d".')
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="How many entries, the newest first.",
)
@json_option
@store_command()
def command(target: Target, since: datetime, limit: int, as_json: bool) -> None:
    """List what operators did: author, action, time and number of jobs, the newest first. Kept for 90 days."""

    async def look(store: Store) -> None:
        entries = await Audit(store).read(since, limit=limit)
        if as_json:
            emit_list([msgspec.structs.asdict(entry) for entry in entries])
        elif not entries:
            say("no entries: no operator changed anything")
        else:
            rows = [
                (
                    f"{entry.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                    entry.who,
                    entry.action,
                    short(entry.what, 80),
                    entry.jobs,
                )
                for entry in entries
            ]
            table(
                ("when (UTC)", "who", "action", "what", "jobs"),
                rows,
                right=(4,),
                cut={"who": 12, "what": 20},
                drop=("jobs",),
            )

    run(target.with_store(look))
