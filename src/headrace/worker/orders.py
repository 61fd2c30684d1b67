"""Obeys the orders of operators that the answers to heartbeats bring: be quiet, go on, drain."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.model.lease import WorkerOrder
from headrace.worker.service import log
from headrace.worker.state import WorkerState

_read = msgspec.json.Decoder(WorkerOrder).decode


class Orders:
    """The orders to one worker."""

    def __init__(
        self, state: WorkerState, *, hush: Callable[[], None], go_on: Callable[[], None], drain: Callable[[], None]
    ) -> None:
        self._state = state
        self._hush = hush
        self._go_on = go_on
        self._drain = drain
        self._last = b""
        self._hushed = False
        """The worker is quiet because of an order, and not because of a signal or a drain."""

    def hear(self, order: bytes) -> None:
        """Do what the answer to a heartbeat says. The same order comes with every answer while it stands."""
        if order == self._last:
            return
        self._last = order
        kind, by = "", ""
        if order:
            try:
                given = _read(order)
            except msgspec.DecodeError:
                log.warning("worker %s cannot read its order and ignores it", self._state.name)
                return
            kind, by = given.kind, given.by
        match kind:
            case "drain":
                log.info("worker %s drains and ends: %s asked for it", self._state.name, by)
                self._hushed = False
                self._drain()
            case "quiet" if not self._state.quiet:
                log.info("worker %s claims nothing more until it is resumed: %s asked for it", self._state.name, by)
                self._hushed = True
                self._hush()
            case "" if self._hushed:
                log.info("worker %s claims jobs again", self._state.name)
                self._hushed = False
                self._go_on()
            case _:
                pass

    def forget(self) -> None:
        """A signal or a drain made the worker quiet for good."""
        self._hushed = False
