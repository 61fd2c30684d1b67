"""Replay and discard dead letters."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model.records import Progress
from headrace.operate.dead_letters import Choice, DeadLetters, Discarded, Replayed
from headrace.operate.ledger import Ledger, chosen
from headrace.policy.canary import Canary
from headrace.store.contract import Store

DeadLetterSource = Callable[[Store], DeadLetters]
"""The dead letters of a store as an app sees them, which knows its tasks' options and what they mask."""


class DeadLetterOperations:
    """Moves of dead letters."""

    def __init__(self, store: Store, ledger: Ledger, letters: DeadLetterSource | None) -> None:
        self._letters = (letters or DeadLetters)(store)
        self._ledger = ledger

    async def replay(
        self,
        choice: Choice,
        *,
        rate: float | None = None,
        canary: Canary | None = None,
        progress: Progress | None = None,
        into: Replayed | None = None,
        what: str = "",
    ) -> Replayed:
        """Make dead jobs ready again; see `DeadLetters.replay`. `what`: how they were chosen, if not by `choice`."""
        answer = into or Replayed()
        try:
            return await self._letters.replay(choice, rate=rate, canary=canary, progress=progress, into=answer)
        finally:
            # An interrupted replay has its entry, too.
            await self._ledger.note("dead.replay", what or _chosen(choice), len(answer.replayed))

    async def discard(
        self,
        choice: Choice,
        *,
        reason: str,
        progress: Progress | None = None,
        into: Discarded | None = None,
        what: str = "",
    ) -> Discarded:
        """Delete dead jobs for good; see `DeadLetters.discard`. `what`: as in `replay`."""
        answer = into or Discarded()
        try:
            return await self._letters.discard(
                choice, reason=reason, by=self._ledger.actor, progress=progress, into=answer
            )
        finally:
            await self._ledger.note("dead.discard", f"{what or _chosen(choice)}: {reason}", len(answer.records))


def _chosen(choice: Choice) -> str:
    return chosen(choice.ids, choice.where, group=choice.group)
