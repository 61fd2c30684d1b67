"""Set, reset and remove limits at run time."""

from __future__ import annotations

from headrace.operate.ledger import Ledger, of_limit
from headrace.operate.stored_limits import LimitEntry, Limits
from headrace.store.contract import Store
from headrace.task.limit import LimitFigures


class LimitOperations:
    """Changes of limits; see `Limits` for what each does."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._limits = Limits(store)
        self._ledger = ledger

    async def set(self, name: str, figures: LimitFigures) -> LimitEntry:
        """Put an operator's figures in place of the declared ones."""
        entry = await self._limits.set(name, figures)
        await self._ledger.note("limits.set", of_limit(name, entry.override))
        return entry

    async def reset(self, name: str) -> LimitEntry | None:
        """Back to the declared figures; None: this key has no rule of its own."""
        entry = await self._limits.reset(name)
        await self._ledger.note("limits.reset", name)
        return entry

    async def remove(self, name: str) -> list[str]:
        """Forget a limit and its keys; answers which."""
        gone = await self._limits.remove(name)
        if gone:
            await self._ledger.note("limits.remove", name)
        return gone
