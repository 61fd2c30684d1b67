"""The whole of `headrace worker`: the supervisor and what runs beside it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from headrace.settings import Settings
from headrace.worker.health import Address, answering
from headrace.worker.process_table import ProcessTable
from headrace.worker.recycle import recycling
from headrace.worker.supervisor import Supervisor


def supervise(settings: Settings, health: Address | None = None) -> int:
    """Run `settings.processes` workers until a signal stops them. Returns the exit code. `health`: where to answer probes."""
    return asyncio.run(_supervise(settings, health))


async def _supervise(settings: Settings, health: Address | None) -> int:
    table = ProcessTable()
    supervisor = Supervisor(settings, table)
    async with AsyncExitStack() as beside:
        if health is not None:
            await beside.enter_async_context(answering(table, health))
        await beside.enter_async_context(recycling(table, settings))
        return await supervisor.run()
