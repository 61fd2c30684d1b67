"""How headrace's own processes write their log: one line an event, on stderr."""

from __future__ import annotations

import logging


def configure(level: str) -> None:
    """Unless the app has set up logging itself."""
    if level.upper() != "DEBUG":
        for library in ("httpx", "httpcore"):
            # A line for each call of a store over HTTP says nothing that ours do not.
            logging.getLogger(library).setLevel(logging.WARNING)
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(process)d %(levelname)-7s %(name)s: %(message)s")
