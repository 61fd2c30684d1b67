"""Ranges on their way into the tables that several verbs write."""

from __future__ import annotations

from headrace.store.sqlite.rows import Bulk
from headrace.store.sqlite.statements import load

INSERT_READY = Bulk(load("enqueue")["ready"])
INSERT_SCHEDULED = Bulk(load("enqueue")["scheduled"])
INSERT_ENDINGS = Bulk(load("settle")["ending"], blobs=True)
