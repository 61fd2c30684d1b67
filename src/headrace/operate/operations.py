"""Every operator verb, once: Python, the command line and the HTTP server parse, call these, and print.

Each verb leaves its entry in the audit log, with the same text whichever way it was called.
"""

from __future__ import annotations

from headrace.operate.archive.move import ArchiveOperations
from headrace.operate.audit import Ledger
from headrace.operate.autoscale import AutoscaleOperations
from headrace.operate.dead.moves import DeadLetterOperations
from headrace.operate.events import EventOperations
from headrace.operate.groups import GroupOperations
from headrace.operate.history import HistoryOperations
from headrace.operate.jobs import JobOperations
from headrace.operate.limits import LimitOperations
from headrace.operate.pauses import PauseOperations
from headrace.operate.report import ReportOperations
from headrace.operate.schedules import ScheduleOperations
from headrace.operate.shown import TaskSource, unknown
from headrace.operate.tokens import TokenOperations
from headrace.operate.workers import WorkerOperations
from headrace.store.audit import Audit
from headrace.store.contract import Store


class Operations:
    """What one actor does to one store."""

    def __init__(
        self, store: Store, *, audit: Audit | None = None, actor: str = "", task_of: TaskSource = unknown
    ) -> None:
        """`actor`: a token's name; the user of this process if it is left out. `task_of` finds the tasks of an app."""
        ledger = Ledger.of(store, audit=audit, actor=actor)
        self.store = store
        self.actor = ledger.actor
        self.jobs = JobOperations(store, ledger)
        self.history = HistoryOperations(store)
        self.report = ReportOperations(store)
        self.autoscale = AutoscaleOperations(store)
        self.archive = ArchiveOperations(store, ledger, task_of)
        self.groups = GroupOperations(store, ledger)
        self.pauses = PauseOperations(store, ledger)
        self.dead = DeadLetterOperations(store, ledger, task_of)
        self.limits = LimitOperations(store, ledger)
        self.schedules = ScheduleOperations(store, ledger)
        self.tokens = TokenOperations(store, ledger)
        self.workers = WorkerOperations(store, ledger)
        self.events = EventOperations(store, ledger)
