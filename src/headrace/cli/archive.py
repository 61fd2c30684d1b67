"""`headrace archive`: moves ended jobs into Parquet files, before retention drops them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from headrace.cli import params
from headrace.cli.filters import named
from headrace.cli.output import emit, progress, say
from headrace.cli.target import Target, json_option, store_command
from headrace.model.duration import show

if TYPE_CHECKING:
    from headrace.operate.archive.move import Archived
    from headrace.operate.operations import Operations

_MARGIN: Final = timedelta(days=1)
"""How long before the end of its retention a dead letter is moved, if the caller does not say."""


@click.command()
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the files. It is made if there is none.",
)
@click.option(
    "--before",
    type=params.PAST,
    default="5d",
    show_default=True,
    help="Move done and cancelled jobs that ended before this time or age.",
)
@click.option(
    "--dead", type=params.PAST, help="The same for dead letters. [default: a day before keep_dead drops them]"
)
@click.option("--queue", type=params.QUEUE, help="This queue only.")
@json_option
@store_command()
def command(
    target: Target, folder: Path, before: datetime, dead: datetime | None, queue: str | None, as_json: bool
) -> None:
    """Move ended jobs into Parquet files, then delete them from the store.

    It may be interrupted at any time. The next call goes on, loses no job and writes none twice.
    """
    from headrace.operate.archive.move import ArchiveCut

    settings, now = target.settings, datetime.now(UTC)
    if now - before > settings.keep_done:
        say(f"keep_done is {show(settings.keep_done)}: workers drop most done jobs before they are as old as --before")
    cut = ArchiveCut(done=before, dead=min(before, now - settings.keep_dead + _MARGIN) if dead is None else dead)

    async def act(operations: Operations) -> Archived:
        with progress("archive", quiet=as_json) as meter:
            return await operations.archive.move(folder, cut, queue=queue, progress=meter)

    archived = target.operate(act)
    if as_json:
        emit(msgspec.to_builtins(archived))
        return
    click.echo(f"moved {named(archived.jobs)} to {folder} in {named(len(archived.files), 'new file')}")
    if archived.kept:
        say(f"{named(archived.kept)} stay in the store, because they were retried meanwhile")
