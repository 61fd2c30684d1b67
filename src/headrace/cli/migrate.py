"""`headrace migrate`: bring the store's schema up to date."""

from __future__ import annotations

import click

from headrace.cli.output import emit, progress
from headrace.cli.target import Target, json_option, run, store_command


@click.command()
@json_option
@store_command(create=True)
def command(target: Target, as_json: bool) -> None:
    """Bring the store's schema up to date; safe to repeat, and while others do the same."""

    async def act() -> list[str]:
        # The store is not opened first, because `open` refuses a missing or old schema.
        store = target.connect()
        try:
            with progress("migrate", quiet=as_json) as meter:
                return await store.migrate(meter)
        finally:
            await store.close()

    steps = run(act())
    if as_json:
        emit({"store": target.shown_url, "steps": steps})
        return
    for step in steps:
        click.echo(step)
    click.echo(f"{target.shown_url}: {f'{len(steps)} steps taken' if steps else 'up to date'}")
