"""What Redis says when it does not do what it was asked, in our words; the only place that knows its error codes."""

from __future__ import annotations

from ssl import SSLCertVerificationError

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    RedisError,
    ResponseError,
)

from headrace.errors import ConfigError, HeadraceError, OutcomeUnknown, StoreError, StoreFull, Unavailable

_PASSING = ("BUSY ", "LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "ASK ", "READONLY", "UNBLOCKED")
"""Nothing was done, and soon it may go: worth a short wait."""


class Cut(Exception):
    """The connection broke. `sent`: the server may have done what it was asked."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Untrusted(Cut):
    """The server's certificate is not one that we trust, or is for another host."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


def distrust(error: BaseException | None) -> str | None:
    """Why its certificate was not trusted, if that is what ended the connection."""
    while error is not None:
        if isinstance(error, SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None


def passes(error: Exception) -> bool:
    """The server refused for now: ask again shortly."""
    return isinstance(error, RedisError) and _said(error).startswith(_PASSING)


def moved(error: Exception) -> bool:
    """The slot lives on another node (a cluster), or the primary is another (Sentinel)."""
    return isinstance(error, RedisError) and _said(error).startswith(("MOVED", "READONLY", "CLUSTERDOWN"))


def unknown_script(error: Exception) -> bool:
    return isinstance(error, RedisError) and _said(error).startswith("NOSCRIPT")


def _said(error: BaseException) -> str:
    """The error as the server sent it: the client library cuts the code off some."""
    name = type(error).__name__
    text = str(error)
    for kind, code in _CUT_OFF.items():
        if name == kind and not text.startswith(code):
            return f"{code} {text}"
    return text


_CUT_OFF = {
    "NoScriptError": "NOSCRIPT",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "OutOfMemoryError": "OOM",
}


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
    text = _said(error)
    if isinstance(error, AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return ConfigError(f"Redis at {where} refuses the user or password: check them in the URL")
    if isinstance(error, AuthorizationError) or text.startswith("NOPERM"):
        return ConfigError(
            f"the user lacks rights on Redis at {where}: it needs EVALSHA, SCRIPT LOAD and every key of the prefix"
        )
    for code, make, message in _TABLE:
        if text.removeprefix("ERR ").startswith(code):
            return make(message.format(where=where))
    if isinstance(error, ResponseError):
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
        "Redis at {where} is busy with somebody's long script: SCRIPT KILL ends it; nothing was done",
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
    ("DB index", ConfigError, "Redis at {where} has no database of that number"),
    (
        "ERR unknown command",
        ConfigError,
        "the server at {where} lacks a command headrace needs: use Redis 7.0 or newer, or Valkey",
    ),
)
