"""The operator's moves: cancel, retry, delete; and the records that other parts keep here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from headrace.model.job import JobId, JobState
from headrace.model.records import CancelAnswer, Record
from headrace.store.redis import scripts
from headrace.store.redis.parcel import states_arg
from headrace.store.redis.records import record_of, text_bytes
from headrace.store.redis.scripts import Script
from headrace.store.redis.verbs.base import chunks
from headrace.store.redis.verbs.find import Searching

_AT_ONCE: Final = 200
"""Jobs that one script moves: a script holds up everybody."""

_ANSWERS = {
    "c": CancelAnswer.CANCELLED,
    "a": CancelAnswer.ASKED,
    "f": CancelAnswer.FINISHED,
    "u": CancelAnswer.UNKNOWN,
}


class Operating(Searching):
    """See the contract."""

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        said = b"0" if reason is None else b"1" + text_bytes(reason)
        letters = await self._everywhere(scripts.CANCEL, ids, "u", self._given, said)
        return {id: _ANSWERS[letter] for id, letter in letters.items()}

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        moved = await self._everywhere(scripts.RETRY, ids, "0", str(int(afresh)))
        return frozenset(id for id, digit in moved.items() if digit == "1")

    async def delete(self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None) -> frozenset[JobId]:
        takes = states_arg(JobState if states is None else states)
        gone = await self._everywhere(scripts.DELETE, ids, "0", takes)
        return frozenset(id for id, digit in gone.items() if digit == "1")

    async def _everywhere(
        self, script: Script, ids: Sequence[JobId], nothing: str, *args: str | bytes
    ) -> dict[JobId, str]:
        """One letter per id, from the queue that knows it; `nothing` where none does."""
        answers = dict.fromkeys(ids, nothing)

        async def move(queue: str, some: list[UUID]) -> Collection[UUID]:
            left = some
            while left:  # a script does fewer of them where lanes are long
                # Not repeated after a lost answer: the second one would say of what the first has done that it was so before.
                answer = await self._wire.run(
                    script, self._keys.of(queue), *args, *(id.bytes for id in left), repeat=False
                )
                letters: str = answer.decode()
                answers.update(zip(map(JobId, left), letters, strict=False))
                left = left[len(letters) :]
            return [id for id in some if answers[JobId(id)] != nothing]

        for some in chunks(list(answers), _AT_ONCE):
            await self._ask_by_id(some, move)
        return answers

    # ── records ─────────────────────────────────────────────────────────────

    async def records(self, kind: str) -> dict[str, Record]:
        key = f"{self._keys.records[0]}r:{kind}"
        found = await self._wire.command(key, "HGETALL", key)
        pairs = sorted(zip(found[::2], found[1::2], strict=True))
        return {name.decode(): Record(*record_of(raw)) for name, raw in pairs}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        keys = self._keys.records
        said = b"0" if value is None else b"1" + value
        expected = "" if expect is None else expect
        # Not repeated after a lost answer: one's own write would look like somebody else's.
        version: int = await self._wire.run(scripts.RECORD, keys, kind, name, expected, said, repeat=False)
        await self._confirmed(keys[0])
        return None if version < 0 else version
