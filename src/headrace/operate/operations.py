"""Every operator verb, once: Python, the command line and the HTTP server parse, call these, and print.

Each verb leaves its entry in the audit log, with the same text whichever way it was called.
"""

from __future__ import annotations

from headrace.operate.dead import DeadLetterOperations, DeadLetterSource
from headrace.operate.jobs import JobOperations
from headrace.operate.ledger import Ledger, chosen, of_limit, of_schedule
from headrace.operate.limits import LimitOperations
from headrace.operate.pauses import PauseOperations, Until, check_until, pausable
from headrace.operate.schedules import ScheduleOperations
from headrace.store.audit import Audit, whoami
from headrace.store.contract import Store

__all__ = ["Operations", "Until", "check_until", "chosen", "of_limit", "of_schedule", "pausable"]


class Operations:
    """What one actor does to one store."""

    def __init__(
        self, store: Store, *, audit: Audit | None = None, actor: str = "", letters: DeadLetterSource | None = None
    ) -> None:
        """`actor`: a token's name; the user of this process if it is left out. `letters` knows the tasks of an app."""
        # Behind a remote store the server writes the entries, under the name of the token.
        kept = None if getattr(store, "writes_audit", False) else audit or Audit(store)
        ledger = Ledger(kept, actor or whoami())
        self.actor = ledger.actor
        self.jobs = JobOperations(store, ledger)
        self.pauses = PauseOperations(store, ledger)
        self.dead = DeadLetterOperations(store, ledger, letters)
        self.limits = LimitOperations(store, ledger)
        self.schedules = ScheduleOperations(store, ledger)
