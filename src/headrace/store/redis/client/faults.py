"""Translates the errors of Redis into headrace's errors. No other module knows the error codes of Redis."""

from __future__ import annotations

import re
from ssl import SSLCertVerificationError

from headrace.errors import ConfigError, HeadraceError, OutcomeUnknown, StoreError, StoreFull, Unavailable

_PASSING = ("BUSY ", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK ", "READONLY", "UNBLOCKED")
"""The server did nothing, and may accept the command soon: the client waits briefly and repeats it."""


class Refused(Exception):
    """The server refused a command. The message is the server's own and begins with a code."""


class Cut(Exception):
    """The connection broke. `sent`: the server may have run the command."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Untrusted(Cut):
    """The server's certificate is not trusted, or is for another host."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


def foreign(key: str) -> ConfigError:
    """The error for a key under headrace's prefix that another program has written."""
    return ConfigError(f"{key} in Redis is not headrace's: name a prefix of its own with ?prefix= in the URL")


def distrust(error: BaseException | None) -> str | None:
    """Why the server's certificate was not trusted, if that ended the connection."""
    while error is not None:
        if isinstance(error, SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def passes(error: Exception) -> bool:
    """Whether the refusal passes by itself: the client may repeat the command shortly."""
    return isinstance(error, Refused) and str(error).startswith(_PASSING)


def moved(error: Exception) -> bool:
    """Whether the slot is on another node (a cluster), or another server is the primary (Sentinel)."""
    return isinstance(error, Refused) and str(error).startswith(("MOVED", "READONLY", "CLUSTERDOWN"))


def demoted(error: Exception) -> bool:
    """Whether the server is a replica, because another server has become the primary."""
    return str(error).startswith("READONLY")


def unknown_script(error: Exception) -> bool:
    return isinstance(error, Refused) and str(error).startswith("NOSCRIPT")


def forbidden(error: BaseException) -> bool:
    """Whether the user lacks a right."""
    return str(error).startswith(("NOPERM", *_FORBIDDEN))


_FORBIDDEN = ("ERR ACL failure in script: ", "ERR The user executing the script can't")
"""A script runs with the rights of its caller."""


def unwelcome(error: BaseException) -> bool:
    """Whether the server refuses this user or password."""
    return isinstance(error, Refused) and str(error).startswith(_UNWELCOME)


_UNWELCOME = ("WRONGPASS", "NOAUTH", "ERR AUTH ", "ERR invalid password", "ERR Client sent AUTH")


_UNKNOWN = re.compile(r"(?:ERR )?unknown command ['`]([\w|.-]{1,40})['`]", re.IGNORECASE)


def translated(error: BaseException, where: str) -> HeadraceError:
    """The error as one of headrace's, which says what is wrong and what to do."""
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, Untrusted):
        return ConfigError(
            f"the certificate of Redis at {where} is not trusted ({error}): "
            "name its authority with ?tls_ca=, and the host as the certificate does"
        )
    if isinstance(error, Cut):
        if error.sent:
            return OutcomeUnknown(f"the connection to Redis at {where} broke after the command was sent: ask again")
        return Unavailable(f"Redis at {where} cannot be reached: {error}")
    text = str(error)
    if unwelcome(error):
        return ConfigError(f"Redis at {where} refuses the user or password: check them in the URL")
    if forbidden(error):
        reason = re.sub(r"^(NOPERM|ERR( ACL failure in script:)?) | script: .*$", "", text)
        return ConfigError(
            f"the user lacks a right on Redis at {where} ({reason}): give it what the ACL line in docs/operate/security.md has"
        )
    if missing := _UNKNOWN.match(text):
        return ConfigError(
            f"the server at {where} lacks the command {missing[1].upper()}, which headrace needs: "
            "use Redis 7.0 or newer, or Valkey, and rename no commands"
        )
    for code, make, message in _TABLE:
        if text.removeprefix("ERR ").startswith(code):
            return make(message.format(where=where))
    if isinstance(error, Refused):
        return StoreError(f"Redis at {where} answered: {text}")
    return Unavailable(f"Redis at {where} cannot be reached: {text}")


_TABLE: tuple[tuple[str, type[HeadraceError], str], ...] = (
    ("OOM", StoreFull, "Redis at {where} is at its maxmemory: raise it or let workers catch up; nothing was stored"),
    (
        "MISCONF",
        Unavailable,
        "Redis at {where} cannot write to its disk and refuses changes: free space, see its log; nothing was done",
    ),
    (
        "BUSY",
        Unavailable,
        "Redis at {where} is busy with a long script: SCRIPT KILL ends it; nothing was done",
    ),
    ("LOADING", Unavailable, "Redis at {where} is loading its data: it answers when it has"),
    (
        "READONLY",
        Unavailable,
        "Redis at {where} is a replica: point the URL at the primary, or use Sentinel or a cluster",
    ),
    (
        "NOREPLICAS",
        Unavailable,
        "Redis at {where} has too few replicas for its min-replicas-to-write; nothing was done",
    ),
    ("CLUSTERDOWN", Unavailable, "the Redis cluster at {where} is down or misses slots; nothing was done"),
    ("TRYAGAIN", Unavailable, "the Redis cluster at {where} is moving this queue: try again"),
    ("ASK", Unavailable, "the Redis cluster at {where} is moving this queue: try again"),
    ("MOVED", Unavailable, "the Redis cluster at {where} keeps moving this queue: try again"),
    ("MASTERDOWN", Unavailable, "the replica at {where} has lost its primary"),
    ("CROSSSLOT", ConfigError, "Redis at {where} is a cluster: write redis+cluster:// in the URL"),
    ("max number of clients", Unavailable, "Redis at {where} takes no more connections: raise maxclients"),
    (
        "WRONGTYPE",
        ConfigError,
        "Redis at {where} has keys of another program under headrace's names: set another prefix with ?prefix= in the URL",
    ),
    ("DB index", ConfigError, "Redis at {where} has no database of that number"),
    (
        "Unknown Redis command called from script",
        ConfigError,
        "Redis at {where} lacks a command that headrace's scripts call: take rename-command out of its configuration",
    ),
)
