"""The supervisor's lines carry the name of the worker's logger, so that one filter chooses both."""

from __future__ import annotations

import logging

log = logging.getLogger("headrace.worker")
