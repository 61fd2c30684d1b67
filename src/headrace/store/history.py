"""The verbs of history, which are a part of the contract: rollups go in, come out, and are folded; ends may come late."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from headrace.model.rollup import MAX_ROLLUPS, HistoryPage, Rollup, RollupKey


class KeepsHistory(Protocol):
    """A store keeps rollups and does not read them. `policy/history.py` decides what is folded and what is dropped."""

    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        """Add up to MAX_ROLLUPS rollups. One whose key exists changes nothing, so a call may be repeated.

        Need not survive a crash of the store.
        """
        ...

    async def read_history(
        self,
        since: int,
        until: int,
        *,
        queue: str | None = None,
        task: str | None = None,
        after: RollupKey | None = None,
        limit: int = MAX_ROLLUPS,
    ) -> HistoryPage:
        """Rollups that start at or after the minute `since` and before the minute `until`, in the order of their keys.

        A call reads at most `limit` rollups, also those of other queues and tasks. So a page may be short or empty with
        `next` set: only a `next` of None is the end.
        """
        ...

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        """Replace rollups by others in one step: both happen, or nothing. At most MAX_ROLLUPS of each.

        False: one of `gone` does not exist any more, because another caller was faster, and nothing was changed.
        """
        ...


class LateEnding(Protocol):
    """Stores in which an end may become visible long after its time, because a user's own transaction makes it."""

    async def ended_until(self) -> datetime:
        """A time before which `ended` shows every end by now, except those whose call was just beginning at that time.

        While transactions run, it is the time of an earlier call on this object, so the first answer may lie far back.
        """
        ...
