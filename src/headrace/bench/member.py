"""The processes of a run: `python -m headrace.bench.member`. Each fork reads orders from stdin and writes answers to stdout."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from headrace.app import Headrace
from headrace.bench.fork_server import fork_members
from headrace.bench.load import Load
from headrace.bench.roles import Role, RoleName, Spec
from headrace.bench.workflow_roles import ROLES
from headrace.runtime.event_loop import run

TELL_EVERY = 0.02
"""Seconds between two counts that a member sends: rare enough to cost nothing."""


class PipeLine:
    """The line of a member in a process of its own: lines of text on its pipes."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._go = asyncio.Event()
        self._stop = asyncio.Event()
        self._told_at = 0.0
        self._pending: asyncio.TimerHandle | None = None
        self._count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for order in sys.stdin:
            self._loop.call_soon_threadsafe((self._go if order.strip() == "go" else self._stop).set)
        # The run has ended, so this process ends, too.
        self._loop.call_soon_threadsafe(self._go.set)
        self._loop.call_soon_threadsafe(self._stop.set)

    async def ready(self) -> None:
        tell("ready")
        await self._go.wait()

    async def stopped(self) -> None:
        await self._stop.wait()

    def settled(self, count: int) -> None:
        self._count = count
        if self._pending is None:
            wait = max(0.0, self._told_at + TELL_EVERY - time.monotonic())
            self._pending = self._loop.call_later(wait, self._tell_count)

    def _tell_count(self) -> None:
        self._pending, self._told_at = None, time.monotonic()
        tell(f"settled {self._count}")


def tell(line: str) -> None:
    """Write one line to the run."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def play(
    spec: Spec, roles: Mapping[RoleName, Role], app: Callable[[str], Headrace], trace: Callable[[Headrace, float], None]
) -> None:
    """Play the role to its end."""
    load = Load(spec.url, spec.queue, app=app)
    if spec.traced is not None:
        trace(load.app, spec.traced)
    report = await roles[spec.role](spec, load, PipeLine())
    tell("report " + msgspec.json.encode(report).decode())


def no_trace(app: Headrace, share: float) -> None:
    """The installed package measures no tracing, because the integrations are above it."""
    del app, share


def main(
    roles: Mapping[RoleName, Role],
    layouts: Mapping[str, Callable[[str], Headrace]],
    trace: Callable[[Headrace, float], None] = no_trace,
) -> None:
    """`layouts`: by engine, the app for a spec with `usual`. `trace`: traces an app, with this share of traces sampled."""
    logging.basicConfig(level=logging.WARNING)
    if not fork_members(*sys.argv[1:]):
        return
    # The orders contain the URL, which may have a password that must not be in the list of processes.
    spec = msgspec.json.decode(sys.stdin.readline(), type=Spec)
    run(play(spec, roles, layouts[spec.engine] if spec.usual else Headrace, trace))


if __name__ == "__main__":
    main(ROLES, {})
