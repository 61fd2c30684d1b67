"""The batch that a task enqueues at one place of its code. Its id is a step, so every attempt that comes there enqueues the same one.

A journal that was forgotten, because an operator has retried a done or cancelled job, begins with fresh batches.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from headrace.model.job import BatchId, new_batch
from headrace.model.step import MAX_STEP_NAME, Step
from headrace.task.context import StepKeeper
from headrace.task.journal import StepChanged, Ticket
from headrace.task.steps import steps_outside

_encode_id = msgspec.msgpack.Encoder().encode
_decode_id = msgspec.msgpack.Decoder(BatchId).decode


class BatchStep(NamedTuple):
    """One call inside a task that enqueues jobs."""

    keeper: StepKeeper
    ticket: Ticket

    @classmethod
    def begin(cls, name: str, digest: bytes) -> BatchStep:
        """Number the call now. `name` says what it does, such as `await shop.ocr`; `digest` tells its jobs apart.

        Raises NoCurrentJob outside a task, and ConfigError inside a step.
        """
        keeper = steps_outside(name)
        return cls(keeper, keeper.journal.call(name[:MAX_STEP_NAME], digest, BatchStep))

    async def find(self) -> BatchId | None:
        """The batch that an earlier attempt has chosen. None: none has come here. The jobs may be stored, or not yet."""
        await self.keeper.load()
        return self._found()

    async def choose(self) -> BatchId:
        """A fresh batch, remembered before its jobs are enqueued. Raises LeaseLost."""
        batch = new_batch()
        with self.keeper.busy():
            await self.keeper.add(self._step(batch, self.keeper.now()), lazy=False)
        return batch

    def find_sync(self) -> BatchId | None:
        """The same as `find`, for sync tasks."""
        self.keeper.load_sync()
        return self._found()

    def choose_sync(self) -> BatchId:
        """The same as `choose`, for sync tasks."""
        batch = new_batch()
        self.keeper.add_sync(self._step(batch, self.keeper.now()), lazy=False)
        return batch

    def _found(self) -> BatchId | None:
        try:
            step = self.keeper.journal.find(self.ticket)
        except StepChanged:
            raise StepChanged(
                f"step_changed: call {self.ticket.number + 1} of `{self.ticket.name}` had other arguments in an earlier "
                "attempt. Compute what changes from attempt to attempt, such as the time, in a step"
            ) from None
        return None if step is None else _decode_id(step.value or b"")

    def _step(self, batch: BatchId, at: datetime) -> Step:
        return self.keeper.journal.finish(self.ticket, _encode_id(batch), at)
