"""What an operator should know of a store's server, logged once by a worker and not by every producer."""

from __future__ import annotations

import logging

from headrace.store.contract import Remarking, Store

log = logging.getLogger("headrace.worker")
_logged: set[str] = set()
"""Messages that were logged: each once per process, however many workers it runs."""


def log_remarks(store: Store) -> None:
    """Log the warnings that an open store has about its server. `headrace doctor` lists the same ones."""
    for finding in store.remarks if isinstance(store, Remarking) else ():
        if finding.message not in _logged:
            _logged.add(finding.message)
            log.warning("%s: %s", finding.about, finding.message)
