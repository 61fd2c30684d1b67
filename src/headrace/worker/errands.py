"""The process for the supervisor's calls of the store: `python -m headrace.worker.errands CONTROL`, started on demand.

The supervisor itself loads no store. It starts this process when a worker process dies or is stuck, tells it what to do, and
closes the socket when there was nothing to do for a while.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

import msgspec

from headrace.errors import HeadraceError, Unavailable
from headrace.policy.explain import sentences
from headrace.runtime import logs
from headrace.runtime.sighup import leave_to_parent
from headrace.settings import Settings
from headrace.store import connect
from headrace.store.contract import Store
from headrace.supervisor.errand_frames import HEAD_SIZE, RENEW, ErrandFrame, pack_done, read_errand_head
from headrace.worker import parent_watch, wire
from headrace.worker.child import ChildConfig
from headrace.worker.hand_back import hand_back_unstarted
from headrace.worker.keeper import PATIENCE
from headrace.worker.service import Backoff, OutageLog, log
from headrace.worker.shared_page import Holdings, read_holdings


class ErrandRunner:
    """Runs errands side by side, over one connection to the store that is opened for the first of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Run errands until the supervisor closes the socket."""
        try:
            while (errand := await _next_errand(reader)) is not None:
                task = asyncio.create_task(self._do(errand, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            writer.close()
            if self._store is not None:
                await self._store.close()

    async def _do(self, errand: ErrandFrame, writer: asyncio.StreamWriter) -> None:
        holdings = read_holdings(errand.holdings)
        try:
            if errand.kind == RENEW:
                await self._insist("renewing a stuck worker's leases", self._renewal(holdings), errand.seconds)
            else:
                abandonment = self._abandonment(holdings, errand.cause.decode())
                await self._insist("freeing a dead worker's jobs", abandonment, errand.seconds)
        except Exception:  # noqa: BLE001  # one errand's trouble must not end the others
            log.exception("the supervisor met an unexpected error")
        writer.write(pack_done(errand.number))

    def _abandonment(self, holdings: Holdings, cause: str) -> Callable[[Store], Awaitable[None]]:
        async def abandon(store: Store) -> None:
            await hand_back_unstarted(store, holdings.entries, cause)
            count = await store.abandon(holdings.worker, cause)
            await store.retire(holdings.worker)
            if count:
                log.info("%s of the dead worker may be taken over now", sentences.count(count, "lease"))

        return abandon

    def _renewal(self, holdings: Holdings) -> Callable[[Store], Awaitable[None]]:
        async def renew(store: Store) -> None:
            try:
                async with asyncio.timeout(self._settings.lease.total_seconds() * PATIENCE):
                    await store.heartbeat([entry.token for entry in holdings.entries], self._settings.lease)
            except TimeoutError:
                raise Unavailable("no answer to the heartbeat of a stuck worker's leases") from None

        return renew

    async def _insist(self, what: str, call: Callable[[Store], Awaitable[None]], seconds: float) -> None:
        """Try until the call works, for so many seconds."""
        backoff, outage = Backoff(), OutageLog(what)
        until = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await call(await self._opened())
            except HeadraceError as error:
                outage.raise_(error)
                if asyncio.get_running_loop().time() > until:
                    log.error("%s did not work in time: %s", what, error)
                    return
                await asyncio.sleep(backoff.next())
            else:
                outage.settle()
                return

    async def _opened(self) -> Store:
        async with self._opening:
            if self._store is None:
                store = connect(self._settings.store_url)
                await store.open()
                self._store = store
            return self._store


async def _next_errand(reader: asyncio.StreamReader) -> ErrandFrame | None:
    """The next errand; None: the supervisor closed the socket."""
    try:
        head = read_errand_head(await reader.readexactly(HEAD_SIZE))
        cause = await reader.readexactly(head.cause_length)
        holdings = await reader.readexactly(head.holdings_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return ErrandFrame(head.number, head.kind, head.seconds, cause, holdings)


async def _run(settings: Settings, control: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    await ErrandRunner(settings).run(reader, writer)


def main() -> None:
    leave_to_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    body = wire.receive_body(control)
    if body is None:
        return
    config = msgspec.msgpack.decode(body, type=ChildConfig)
    parent_watch.settle_in(config.path, config.pythonpath)
    parent_watch.die_with_parent(config.parent, signal.SIGTERM)
    logs.configure(config.settings.log_level, config.settings.log_format)
    code = 0
    try:
        asyncio.run(_run(config.settings, control))
    except Exception:  # noqa: BLE001  # one line of the log, also as JSON; the supervisor sends the errands again
        log.exception("the process for the supervisor's calls of the store met an unexpected error and ends")
        code = 1
    logging.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
