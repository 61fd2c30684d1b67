"""History: rollups by their keys."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.rollup import MAX_ROLLUPS, HistoryPage, Rollup, RollupKey
from headrace.store.memory.base import Base


class Remembering(Base):
    """See the contract."""

    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        for rollup in rollups:
            self._rollups.setdefault(rollup.key, rollup)

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
        keys = sorted(key for key in self._rollups if since <= key.start < until and (after is None or key > after))
        page = [self._rollups[key] for key in keys[:limit]]
        fitting = [rollup for rollup in page if queue in {None, rollup.queue} and task in {None, rollup.task}]
        return HistoryPage(fitting, page[-1].key if len(keys) > limit else None, self._folds)

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        if any(key not in self._rollups for key in gone):
            return False
        for key in gone:
            self._rollups.pop(key, None)
        await self.add_history(rollups)
        self._folds += 1
        return True
