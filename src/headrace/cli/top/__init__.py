"""`headrace top`: queues, workers, running jobs and dead jobs live in a terminal, down to one job and its explanation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headrace.cli import params
from headrace.cli.output import on_terminal
from headrace.cli.target import Target, run, store_command
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@click.option("--queue", type=params.QUEUE, help="Only this queue, its jobs and its workers.")
@store_command()
def command(target: Target, queue: str | None) -> None:
    """Queues, workers and jobs live in a terminal: Enter opens what is selected, down to why a job waits; q ends."""
    _check_installed()
    if not (on_terminal() and sys.stdin.isatty()):
        raise ConfigError("headrace top needs a terminal: `headrace stats` prints the figures anywhere")
    from headrace.cli.top.app import TopApp

    async def watch(store: Store) -> None:
        await TopApp(store, target, queue=queue).run_until_ended()

    run(target.with_store(watch))


def _check_installed() -> None:
    try:
        import textual
    except ImportError as error:
        raise ConfigError(f"headrace top needs {error.name}: pip install 'headrace[tui]'") from None
    del textual
