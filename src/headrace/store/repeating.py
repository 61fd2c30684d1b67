"""What stores have beside the contract whose hints can be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Repeating(Protocol):
    """Stores whose hints to `wait` can be lost, for example with a server, or with the worker that took the hint."""

    async def repeat_hints(self, queues: Sequence[str]) -> None:
        """Give the hints of these queues once more, as if what may be claimed there had just become ready."""
        ...
