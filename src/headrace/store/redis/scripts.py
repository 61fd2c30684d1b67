"""The Lua scripts: one file per verb under `lua/`, each behind the common head `lib.lua`, known by its digest."""

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


def _load(verb: str) -> Script:
    folder = files("headrace.store.redis") / "lua"
    source = (folder / "lib.lua").read_bytes() + (folder / f"{verb}.lua").read_bytes()
    # The digest names the script to the server; it is no secret.
    return Script(verb, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


ENQUEUE = _load("enqueue")
CLAIM = _load("claim")
HEARTBEAT = _load("heartbeat")
SETTLE = _load("settle")
PROMOTE = _load("promote")
REAP = _load("reap")
ABANDON = _load("abandon")
DETACH = _load("detach")
PRUNE = _load("prune")
GET = _load("get")
FIND = _load("find")
STATS = _load("stats")
AHEAD = _load("ahead")
CANCEL = _load("cancel")
RETRY = _load("retry")
DELETE = _load("delete")
RECORD = _load("record")
