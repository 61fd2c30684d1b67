"""How headrace's own processes write their log: one line per event, on stderr."""

from __future__ import annotations

import logging


def configure(level: str) -> None:
    """Set up logging, unless the app has done so."""
    if level.upper() != "DEBUG":
        for library in ("httpx2", "httpcore2"):
            # The client's line for each HTTP call adds nothing to headrace's own lines.
            logging.getLogger(library).setLevel(logging.WARNING)
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(process)d %(levelname)-7s %(name)s: %(message)s")
