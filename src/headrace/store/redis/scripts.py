"""The Lua scripts: one file per verb under `lua/`, each behind the common head `lib.lua`, known by its digest.

Where limits are at stake, `limits.lua` stands between the two; claim, the longest, is a folder of parts in one scope.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name by which a server that has seen it knows it."""

    verb: str
    source: bytes
    sha: str


def _load(*parts: str) -> Script:
    folder = files("headrace.store.redis") / "lua"
    source = b"".join((folder / f"{part}.lua").read_bytes() for part in ("lib", *parts))
    verb = parts[-1].partition("/")[0]
    # The digest names the script to the server; it is no secret.
    return Script(verb, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


ENQUEUE = _load("enqueue")
CLAIM = _load("limits", "claim/ask", "claim/lanes", "claim/parking", "claim/turns", "claim/lease")
HEARTBEAT = _load("heartbeat")
SETTLE = _load("limits", "settle")
REPORT = _load("report")
PROMOTE = _load("promote")
REAP = _load("reap")
ABANDON = _load("abandon")
DETACH = _load("detach")
PRUNE = _load("prune")
TIDY = _load("limits", "tidy")
GET = _load("get")
FIND = _load("find")
STATS = _load("stats")
ENDED = _load("ended")
LANES = _load("lanes")
AHEAD = _load("limits", "ahead")
HOLDERS = _load("limits", "holders")
CANCEL = _load("cancel")
RETRY = _load("retry")
DELETE = _load("delete")
PAUSE = _load("pause")
LIMIT = _load("limit")
RULES = _load("rules")
FOLLOW = _load("follow")
RECORD = _load("record")
