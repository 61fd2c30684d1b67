"""`headrace sink`: copies every end of a job to ClickHouse, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from headrace.cli.output import say
from headrace.cli.target import Target, run_long, store_command
from headrace.errors import ConfigError
from headrace.policy.explain.sentences import count
from headrace.runtime import logs

if TYPE_CHECKING:
    from headrace.sink.sink import HistorySink
    from headrace.store.contract import Store


@click.command()
@click.option("--once", is_flag=True, help="Copy what has ended by now, then stop.")
@click.option("--from-start", is_flag=True, help="Begin with the first end that the store still has.")
@store_command()
def command(target: Target, once: bool, from_start: bool) -> None:
    """Copy every end of a job to the ClickHouse table of history_url, until told to stop.

    Workers do it, too, with a part of their time. This process takes over from them while it runs.
    """
    settings = target.settings
    if not settings.history_url:
        raise ConfigError("no table is named: set HEADRACE_HISTORY_URL=clickhouse://user:password@host:8123/database")
    if settings.is_remote:
        raise ConfigError("the sink reads the store itself: run it with the URL of the store that the server uses")
    logs.configure(settings.log_level, settings.log_format)

    async def copy(store: Store) -> None:
        from headrace.sink.sink import sink_of

        holder = f"{socket.gethostname()}:{os.getpid()} {uuid4()}"
        sink = sink_of(store, settings.history_url, holder=holder, force=True, afresh=from_start)
        await (_once(sink) if once else _until_told(sink))

    run_long(target.with_store(copy))


async def _once(sink: HistorySink) -> None:
    say(f"wrote {count(await sink.drain(), 'row')}")


async def _until_told(sink: HistorySink) -> None:
    from headrace.worker.janitor import Chore

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    chore = Chore("history sink", sink.tidy, on_duty=lambda: True)
    chore.start()
    try:
        await stop.wait()
    finally:
        await chore.stop()
