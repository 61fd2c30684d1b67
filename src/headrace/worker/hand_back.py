"""Hands back the jobs of a dead worker that it had not started, as its shared page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from headrace.errors import HeadraceError
from headrace.model.job import Failure
from headrace.model.outcome import Again
from headrace.policy.explain import sentences
from headrace.policy.retry import WORKER_LOST
from headrace.store.contract import Store
from headrace.worker.service import log
from headrace.worker.shared_page import PageEntry


async def hand_back_unstarted(store: Store, entries: Iterable[PageEntry], cause: str) -> None:
    """Settle jobs that a dead worker had claimed and not started. They did not cause its death."""
    count = 0
    for entry in entries:
        if entry.first < entry.size:
            again = _again(entry, cause)
            try:
                await store.settle(entry.token, [(position, again) for position in range(entry.first, entry.size)])
            except HeadraceError:
                raise
            except Exception:  # noqa: BLE001  # what cannot be handed back here comes back as suspects
                log.exception(
                    "the supervisor cannot hand back what a dead worker had not started (%d)", entry.size - entry.first
                )
            else:
                count += entry.size - entry.first
    if count:
        log.info("the supervisor hands back %s that the dead worker had not started", sentences.count(count, "job"))


def _again(entry: PageEntry, cause: str) -> Again:
    failure = None
    if entry.noted:
        text = f"{cause}; other jobs ran beside this one, so the crash is not counted as its own"
        failure = Failure(entry.attempt, WORKER_LOST, text, "", datetime.now(UTC))
    return Again(entry.failures, entry.crashes, suspect=entry.suspect, failure=failure)
