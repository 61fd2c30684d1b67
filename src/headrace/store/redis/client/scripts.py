"""The Lua scripts, known by their digests: one per verb under `lua/`, behind the head `lib.lua` and the parts of `lua/lib` it uses.

Scripts call keys by the names in `names.lua`.
The longest are folders of parts in one scope. Lua makes every function of a script anew at each call, which is most of what a
small call costs on an idle server: so no script has parts that it does not use. The shortest has not even the head.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name by which a server that has seen it knows it."""

    verb: str
    source: bytes
    sha: str


_FOLDER = files("headrace.store.redis") / "lua"
_NAMES = dict(re.findall(r"^local (\w+) = ('[^']+')", (_FOLDER / "names.lua").read_text(), re.MULTILINE))
_NAME = re.compile(rf"(?<![\w.'])({'|'.join(_NAMES)})(?![\w'])")


def read_part(path: Traversable) -> str:
    """A part of a script with the keys in place of their names from `names.lua`.

    Lua would make a local of each name at each call, and bind it to each function that uses it.
    """
    return _NAME.sub(lambda name: _NAMES[name[1]], path.read_text())


def in_own_scope(part: str) -> str:
    """A part as a function of its own, which ends the script if it answers something: Lua has room for 200 locals in one scope."""
    return f"local answered = (function()\n{part}end)()\nif answered then return answered end\n"


def _on_demand(name: str, *parts: str) -> str:
    """Parts whose functions are made when this one is called: it answers what the last part does."""
    return f"local function {name}()\n{''.join(read_part(_FOLDER / f'{part}.lua') for part in parts)}end\n"


def _load(
    verb: str, *parts: str, head: str | None = "lib", apart: tuple[str, ...] = (), on_demand: tuple[str, ...] = ()
) -> Script:
    """`head`: the part that comes first. None: the script uses nothing of the head. `apart`: parts in scopes of their own.

    `on_demand`: parts that the others make when they need them, by the name of the last one. They come behind `hooks`.
    """
    texts = {part: read_part(_FOLDER / f"{part}.lua") for part in (head, *parts) if part is not None}
    if on_demand:
        texts["hooks"] += _on_demand(on_demand[-1], *on_demand)
    source = "".join(in_own_scope(text) if part in apart else text for part, text in texts.items()).encode()
    # The digest names the script to the server; it is no secret.
    return Script(verb, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


_BACK = ("lib/records", "lib/plain", "lib/ends", "lib/rings", "lib/back")
_HISTORY = ("lib/leases", "lib/history")
_PATHS = ("lib/index", *_HISTORY, "lib/paths")
_CLAIM = ("claim/ask", "claim/lanes", "claim/parking", "claim/turns", "claim/lease")

_LINKS = (*_BACK, "lib/links", "lib/release", "lib/closed", "lib/chains", "lib/waits")
_GATES = (*_PATHS, *_LINKS, "lib/gates", "lib/members")
_STORE = ("enqueue/store", "enqueue/answer")

ENQUEUE = _load("enqueue", "lib/records", "lib/rings", "lib/index", "lib/listing", "hooks", "enqueue/keys", *_STORE)
ENQUEUE_CHAINS = _load(
    "enqueue",
    "lib/records",
    "lib/rings",
    "lib/index",
    "lib/listing",
    "hooks",
    "enqueue/keys",
    "enqueue/chains",
    "enqueue/store",
    "enqueue/chained",
    "enqueue/answer",
)
ENQUEUE_LOCKED = _load("enqueue", *_PATHS, *_BACK, "lib/listing", "hooks", "enqueue/keys", "enqueue/locks", *_STORE)
ENQUEUE_LINKED = _load(
    "enqueue",
    *_GATES,
    "lib/listing",
    "hooks",
    "enqueue/keys",
    "enqueue/links",
    "enqueue/locks",
    "enqueue/chains",
    "enqueue/store",
    "enqueue/chained",
    "enqueue/linked",
    apart=("enqueue/locks", "enqueue/store", "enqueue/chained", "enqueue/linked"),
)
ENQUEUE_ONE = _load("enqueue", "enqueue/one", head=None)
CLAIM = _load("claim", "lib", "lib/records", "lib/rings", "lib/leases", "limits", *_CLAIM, head="claim/one")
PRESENCE = _load("heartbeat", "lib/claimable", "presence")
HEARTBEAT = _load("heartbeat", "lib/leases", "heartbeat")
SETTLE = _load("settle", "lib", *_BACK, *_HISTORY, "limits", "hooks", "settle", head="settle/one")
SETTLE_LINKED = _load(
    "settle",
    "lib",
    *_BACK,
    "lib/links",
    "lib/release",
    *_HISTORY,
    "limits",
    "hooks",
    "settle_links",
    "settle",
    head="settle/one",
    on_demand=("lib/closed", "lib/chains", "lib/waits", "lib/gates", "settle_waits"),
)
REPORT = _load("report", *_HISTORY, "report")
PROMOTE = _load("promote", *_LINKS, "promote")
EXPIRED = _load("expired", "expired")
REPEAT_HINTS = _load("wait", "lib/claimable", "repeat_hints")
REAP = _load("reap", "lib/records", "lib/plain", "lib/ends", *_HISTORY, "reap")
ABANDON = _load("abandon", "abandon")
DETACH = _load("detach", *_HISTORY, "detach")
PRUNE = _load("prune", "lib/ends", "lib/index", *_HISTORY, "lib/tokens", "lib/journals", "lib/kept", "prune")
FORGET = _load("prune", "lib/tokens", "lib/drop", "forget")
KEEP = _load("prune", "keep")
LEAVE = _load("prune", "leave")
GONE = _load("prune", "lib/drop", "gone")
REVIVE = _load("enqueue", "revive")
EXPIRED_DEAD = _load("expired_dead", "expired_dead")
TIDY = _load("tidy", *_PATHS, "limits", "tidy")
GET = _load("get", *_PATHS, "get")
FIND = _load("find", *_HISTORY, "find")
SURVEY = _load("survey", "survey")
STATS = _load("stats", "lib/records", "lib/walk", "stats")
ENDED = _load("ended", "lib/records", "lib/ends", "lib/leases", "ended")
LANES = _load("lanes", "lib/records", "lib/walk", "lanes")
AHEAD = _load("ahead", "lib/records", "lib/rings", *_PATHS, "limits", "ahead")
HOLDERS = _load("holders", *_HISTORY, "limits", "holders")
CANCEL = _load("cancel", *_PATHS, *_LINKS, "cancel")
RETRY = _load("retry", *_PATHS, *_LINKS, "lib/journals", "retry")
DELETE = _load("delete", *_PATHS, *_LINKS, "lib/journals", "delete")
PAUSE = _load("pause", "lib/listing", "limits", "pause")
LIMIT = _load("limit", "limits", "limit")
RULES = _load("rules", "rules")
FOLLOW = _load("follow", "limits", "follow")
SHARDS = _load("shards", "shards")
RECORD = _load("record", "record")
ADD_HISTORY = _load("add_history", "rollups/add")
READ_HISTORY = _load("read_history", "rollups/read")
FOLD_HISTORY = _load("fold_history", "rollups/fold")
ADD_STEP = _load("add_steps", "steps/add_one", head=None)
ADD_STEPS = _load("add_steps", *_HISTORY, "steps/add")
READ_STEPS = _load("read_steps", *_PATHS, "steps/read")
ANSWER_WAIT = _load("answer_wait", *_HISTORY, "steps/answer")
READ_OWN_STEPS = _load("read_steps", "steps/own", head=None)
SIGNAL = _load("signal", "lib", *_LINKS, "lib/gates", "lib/listing", "gates/signal", head="gates/signal_one")
READ_GATES = _load("gates", "gates/read")
GROUPS = _load("groups", "gates/groups")
READ_LINKS = _load("links", *_PATHS, *_LINKS, "gates/links")
PRUNE_GATES = _load("prune", *_LINKS, "lib/kept", "gates/prune")
KEEPS = _load("prune", "lib/kept", "gates/keeps")
OWED = _load("promote", "gates/owed")
TAKE = _load("promote", *_GATES, "lib/listing", "gates/take")
PAID = _load("promote", "gates/paid")
PREPARE = _load("enqueue", *_LINKS, "lib/gates", "lib/listing", "gates/prepare")
CONCLUDE = _load("enqueue", *_LINKS, "lib/gates", "gates/conclude")
