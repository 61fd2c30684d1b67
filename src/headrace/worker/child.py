"""One worker process of `headrace worker`: `python -m headrace.worker.child CONTROL BOARD`, started by the supervisor."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from headrace import logs
from headrace.errors import HeadraceError, StoreDamaged, Unavailable
from headrace.hangup import leave_to_parent
from headrace.lease import WorkerId
from headrace.settings import Settings
from headrace.store import connect
from headrace.store.contract import Store
from headrace.worker import Worker, lifeline, wire
from headrace.worker.board import Board
from headrace.worker.room import Backoff, Complaint, log

EXIT_CONFIG = 78
"""Starting again would not help."""
EXIT_DAMAGED = 74
"""The store's file is gone or damaged. A new process would begin with an empty one, so none is started."""


class Config(msgspec.Struct, frozen=True):
    """What the supervisor says first."""

    settings: Settings
    worker: WorkerId
    path: list[str]
    pythonpath: str | None
    parent: int


class Stopping:
    """How the outside tells a worker process to end."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.worker: Worker | None = None

    def stop(self) -> None:
        """Drain, however often TERM arrives: uvloop may report one TERM twice when another signal comes with it."""
        self.asked.set()

    def hurry(self) -> None:
        """Hand back at once, which the supervisor asks for with QUIT."""
        if self.worker is not None:
            self.worker.hurry()
        self.asked.set()

    def quiet(self) -> None:
        if self.worker is not None:
            log.info("worker %s claims nothing more", self.worker.name)
            self.worker.quiet()

    def install(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGQUIT, self.hurry)
        loop.add_signal_handler(signal.SIGTSTP, self.quiet)
        # Nothing is ever sent: readable means that the supervisor is gone.
        loop.add_reader(control, self._orphaned, control)

    def _orphaned(self, control: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(control)
        log.warning("the supervisor is gone: draining")
        self.stop()


async def work(config: Config, control: socket.socket, board: Board) -> None:
    stopping = Stopping()
    stopping.install(control)
    board.ready()
    app = lifeline.load_app(config.settings.app)
    store = connect(config.settings.store_url)
    if not await _open(store, stopping.asked):
        return
    try:
        worker = Worker(
            app.tasks,
            store,
            config.settings,
            id=config.worker,
            board=board,
            duties=app.duties,
        )
        stopping.worker = worker
        damage = asyncio.create_task(worker.until_damaged(), name="headrace-damage")
        damage.add_done_callback(_leave_damaged)
        await worker.run_until(stopping.asked)
        damage.cancel()
    finally:
        await store.close()


def _leave_damaged(damage: asyncio.Task[StoreDamaged]) -> None:
    """End at once: no result can be stored any more, and draining would only wait for that."""
    if not damage.cancelled():
        logging.shutdown()
        os._exit(EXIT_DAMAGED)


async def _open(store: Store, stop: asyncio.Event) -> bool:
    """Wait for a store that cannot be reached; False: told to stop meanwhile."""
    backoff, complaint = Backoff(), Complaint("reaching the store")
    while not stop.is_set():
        try:
            await store.open()
        except Unavailable as error:
            complaint.raise_(error)
            await asyncio.sleep(backoff.next())
        else:
            complaint.settle()
            return True
    return False


def runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    board = Board(int(sys.argv[2]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    leave_to_parent()
    body = wire.receive_body(control)
    if body is None:
        return
    config = msgspec.msgpack.decode(body, type=Config)
    lifeline.settle_in(config.path, config.pythonpath)
    lifeline.die_with_parent(config.parent, signal.SIGTERM)
    logs.configure(config.settings.log_level)
    control.setblocking(False)
    code = 0
    try:
        runner()(work(config, control, board))
    except StoreDamaged as error:
        log.critical("this worker cannot start: %s", error)
        code = EXIT_DAMAGED
    except HeadraceError as error:
        log.error("this worker cannot start: %s", error)
        code = EXIT_CONFIG
    except ImportError:
        log.exception("this worker cannot start: the app %s cannot be imported", config.settings.app)
        code = EXIT_CONFIG
    logging.shutdown()
    if any(thread.daemon and thread.name == "headrace-slot" for thread in threading.enumerate()):
        # A task still runs in a thread. Its job was handed back; waiting for it could take for ever.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
