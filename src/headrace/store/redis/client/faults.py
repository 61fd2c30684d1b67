"""What Redis says when it does not do what it was asked, in our words; the only place that knows its error codes."""

from __future__ import annotations

import re
from ssl import SSLCertVerificationError

from headrace.errors import ConfigError, HeadraceError, OutcomeUnknown, StoreError, StoreFull, Unavailable

_PASSING = ("BUSY ", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK ", "READONLY", "UNBLOCKED")
"""Nothing was done, and soon it may go: worth a short wait."""


class Refused(Exception):
    """A server's own word for why it does not; begins with a code."""


class Cut(Exception):
    """The connection broke. `sent`: the server may have done what it was asked."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Untrusted(Cut):
    """The server's certificate is not one that we trust, or is for another host."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


def foreign(key: str) -> ConfigError:
    """A key under headrace's name holds what headrace does not write."""
    return ConfigError(f"{key} in Redis is not headrace's: name a prefix of its own with ?prefix= in the URL")


def distrust(error: BaseException | None) -> str | None:
    """Why its certificate was not trusted, if that is what ended the connection."""
    while error is not None:
        if isinstance(error, SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def passes(error: Exception) -> bool:
    """The server refused for now: ask again shortly."""
    return isinstance(error, Refused) and str(error).startswith(_PASSING)


def moved(error: Exception) -> bool:
    """The slot lives on another node (a cluster), or the primary is another (Sentinel)."""
    return isinstance(error, Refused) and str(error).startswith(("MOVED", "READONLY", "CLUSTERDOWN"))


def demoted(error: Exception) -> bool:
    """The server is a replica: another is the primary by now."""
    return str(error).startswith("READONLY")


def unknown_script(error: Exception) -> bool:
    return isinstance(error, Refused) and str(error).startswith("NOSCRIPT")


def forbidden(error: BaseException) -> bool:
    """The user lacks a right."""
    return str(error).startswith(("NOPERM", *_FORBIDDEN))


_FORBIDDEN = ("ERR ACL failure in script: ", "ERR The user executing the script can't")
"""A script runs with the rights of its caller."""


def unwelcome(error: BaseException) -> bool:
    """The server does not let this user in, or not with this password."""
    return isinstance(error, Refused) and str(error).startswith(_UNWELCOME)


_UNWELCOME = ("WRONGPASS", "NOAUTH", "ERR AUTH ", "ERR invalid password", "ERR Client sent AUTH")


_UNKNOWN = re.compile(r"(?:ERR )?unknown command ['`]([\w|.-]{1,40})['`]", re.IGNORECASE)


def translated(error: BaseException, where: str) -> HeadraceError:
    """The same in our words: what it is, and what to do."""
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
        said = re.sub(r"^(NOPERM|ERR( ACL failure in script:)?) | script: .*$", "", text)
        return ConfigError(
            f"the user lacks a right on Redis at {where} ({said}): give it what the ACL line in docs/operate/security.md has"
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
        "Redis at {where} is busy with a long script of another client: SCRIPT KILL ends it; nothing was done",
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
