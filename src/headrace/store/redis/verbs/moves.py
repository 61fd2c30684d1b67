"""The operator's moves: cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from headrace.model.job import JobId, JobState
from headrace.model.records import CancelAnswer
from headrace.store.redis.arguments import states_arg
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, chunks
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.element import to_us
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.records import text_bytes
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling

_AT_ONCE: Final = 200
"""Jobs that one script moves: while a script runs, the server answers no other call."""

_ANSWERS = {
    "c": CancelAnswer.CANCELLED,
    "a": CancelAnswer.ASKED,
    "f": CancelAnswer.FINISHED,
    "u": CancelAnswer.UNKNOWN,
}


class Moves:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, locator: JobLocator, telling: Telling) -> None:
        self._wire, self._keys, self._time, self._locator = client.wire, client.keys, time, locator
        self._telling = telling

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        reason_arg = b"0" if reason is None else b"1" + text_bytes(reason)
        letters = await self._everywhere(scripts.CANCEL, ids, "u", self._time.given, reason_arg)
        return {id: _ANSWERS[letter] for id, letter in letters.items()}

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        moved = await self._everywhere(scripts.RETRY, ids, "0", self._time.given, str(int(afresh)))
        return frozenset(id for id, digit in moved.items() if digit == "1")

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        takes = states_arg(JobState if states is None else states)
        by = "" if ended_by is None else str(to_us(ended_by))
        gone = await self._everywhere(scripts.DELETE, ids, "0", self._time.given, takes, by)
        return frozenset(id for id, digit in gone.items() if digit == "1")

    async def _everywhere(
        self, script: Script, ids: Sequence[JobId], nothing: str, *args: str | bytes
    ) -> dict[JobId, str]:
        """One letter for each id, from the queue that knows it; `nothing` for an id that no queue knows."""
        answers = dict.fromkeys(ids, nothing)

        async def move(queue: str, some: list[UUID]) -> Collection[UUID]:
            left = some
            while left:  # a script moves fewer of them if lanes are long
                # It is not repeated after a lost answer: the second answer would not tell what the first call has done.
                answer, owes = await self._wire.run(
                    script, self._keys.of(queue), *args, *(id.bytes for id in left), repeat=False
                )
                if owes:
                    await self._telling.try_to_tell(queue)
                letters: str = answer.decode()
                answers.update(zip(map(JobId, left), letters, strict=False))
                left = left[len(letters) :]
            return [id for id in some if answers[JobId(id)] != nothing]

        for some in chunks(list(answers), _AT_ONCE):
            await self._locator.ask(some, move)
        return answers
