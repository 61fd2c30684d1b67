"""One worker process of `headrace worker`: `python -m headrace.worker.child CONTROL PAGE`, started by the supervisor."""

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

from headrace.errors import HeadraceError, HookFailed, StoreDamaged, Unavailable
from headrace.model.lease import new_worker_id
from headrace.runtime import logs
from headrace.runtime.sighup import leave_to_parent
from headrace.settings import Settings
from headrace.store import connect
from headrace.store.contract import Store
from headrace.supervisor.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_DISMISSED, EXIT_HOOK
from headrace.worker import Worker, parent_watch, wire
from headrace.worker.service import Backoff, OutageLog, log
from headrace.worker.shared_page import SharedPage


class ChildConfig(msgspec.Struct, frozen=True):
    """The first message to a child of the supervisor."""

    settings: Settings
    path: list[str]
    pythonpath: str | None
    parent: int


class Stopping:
    """How signals and the supervisor tell a worker process to end."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.worker: Worker | None = None

    def stop(self) -> None:
        """Drain. A second TERM changes nothing, because uvloop may report one TERM twice."""
        self.asked.set()

    def hurry(self) -> None:
        """Hand back at once. The supervisor asks for this with QUIT."""
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
        # The supervisor sends nothing here. The socket is readable when the supervisor has ended.
        loop.add_reader(control, self._orphaned, control)

    def _orphaned(self, control: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(control)
        log.warning("the supervisor has ended: draining")
        self.stop()


async def work(config: ChildConfig, control: socket.socket, page: SharedPage) -> int:
    """Run the worker until its end. Returns the exit code."""
    stopping = Stopping()
    stopping.install(control)
    page.ready()
    app = parent_watch.load_app(config.settings.app)
    store = connect(config.settings.store_url)
    id = new_worker_id()
    page.show_worker(id)
    if not await _open(store, stopping.asked):
        return 0
    try:
        worker = Worker(
            app.tasks,
            store,
            config.settings,
            id=id,
            page=page,
            duties=app.duties,
        )
        stopping.worker = worker
        damage = asyncio.create_task(worker.until_damaged(), name="headrace-damage")
        damage.add_done_callback(_leave_damaged)
        await worker.run_until(stopping.asked)
        damage.cancel()
        return EXIT_DISMISSED if worker.dismissed.is_set() and not stopping.asked.is_set() else 0
    finally:
        await store.close()


def _leave_damaged(damage: asyncio.Task[StoreDamaged]) -> None:
    """End at once. The store accepts no result any more, so draining would only wait."""
    if not damage.cancelled():
        logging.shutdown()
        os._exit(EXIT_DAMAGED)


async def _open(store: Store, stop: asyncio.Event) -> bool:
    """Wait for a store that cannot be reached. False: a stop was requested meanwhile."""
    backoff, outage = Backoff(), OutageLog("reaching the store")
    while not stop.is_set():
        try:
            await store.open()
        except Unavailable as error:
            outage.raise_(error)
            await asyncio.sleep(backoff.next())
        else:
            outage.settle()
            return True
    return False


def runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    """uvloop's, where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    page = SharedPage(int(sys.argv[2]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    leave_to_parent()
    body = wire.receive_body(control)
    if body is None:
        return
    config = msgspec.msgpack.decode(body, type=ChildConfig)
    parent_watch.settle_in(config.path, config.pythonpath)
    parent_watch.die_with_parent(config.parent, signal.SIGTERM)
    logs.configure(config.settings.log_level, config.settings.log_format, worker=logs.own_name())
    control.setblocking(False)
    code = 0
    try:
        code = runner()(work(config, control, page))
    except StoreDamaged as error:
        log.critical("this worker cannot start: %s", error)
        code = EXIT_DAMAGED
    except HookFailed as error:
        log.error("this worker cannot start: %s", error, exc_info=error.__cause__)
        code = EXIT_HOOK
    except HeadraceError as error:
        log.error("this worker cannot start: %s", error)
        code = EXIT_CONFIG
    except ImportError:
        log.exception("this worker cannot start: the app %s cannot be imported", config.settings.app)
        code = EXIT_CONFIG
    logging.shutdown()
    if any(thread.daemon and thread.name == "headrace-slot" for thread in threading.enumerate()):
        # A task still runs in a thread and may never end. Its job was handed back, so the process does not wait.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
