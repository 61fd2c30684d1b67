"""The whole of `headrace worker`: the supervisor and what runs beside it."""

from __future__ import annotations

import asyncio

from headrace.settings import Settings
from headrace.worker.supervisor import Supervisor


def supervise(settings: Settings) -> int:
    """Run `settings.processes` workers until a signal stops them. Returns the exit code."""
    return asyncio.run(_supervise(settings))


async def _supervise(settings: Settings) -> int:
    return await Supervisor(settings).run()
