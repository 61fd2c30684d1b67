"""Faults: the errors of headrace for those of the driver. Only this file knows SQLSTATEs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.errors import (
    ConfigError,
    HeadraceError,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreFull,
    Unavailable,
)

MIGRATE: Final = "run: headrace migrate"

TRANSIENT: Final = frozenset({"40001", "40P01", "23505", "23514"})
"""Serialization failure, deadlock, a key that another call made at the same moment (the same call sent twice,
whose answer is there by now), and a day whose partition is being made: rolled back, so worth another try at once."""

LOCKED: Final = "55P03"
"""A lock was not free within `lock_timeout`."""
_TOO_LARGE: Final = "HR001"
"""The jobs of a claim have together too many bytes of payload. The detail says how many of them would not."""
_MISSING: Final = frozenset({"3F000", "42P01", "42883", "42703"})
_SHUTDOWN: Final = frozenset({"57P01", "57P02", "57P03", "57P05"})
_DRIVER: Final = frozenset({"InterfaceError", "InternalClientError"})
POOLER: Final = (
    "is a connection pooler (PgBouncer?) that keeps no sessions: add ?pooler=transaction to the URL, or ?pooler=session"
    " where it is in session mode"
)
_SAYINGS: Final[Mapping[str, tuple[type[HeadraceError], str]]] = {
    "28P01": (ConfigError, "refuses the user or the password: check them in the URL"),
    "28000": (ConfigError, "refuses the user: check the user in the URL and the server's pg_hba.conf"),
    "3D000": (ConfigError, "has no such database: create it (createdb), or correct the URL"),
    "42501": (ConfigError, "does not allow this user to use the headrace schema: grant it, or use its owner"),
    "25006": (Unavailable, "is read-only (a standby?): use the primary's address"),
    "26000": (ConfigError, POOLER),
    "42P05": (ConfigError, POOLER),
    "53100": (StoreFull, "has no disk space left: make room"),
    "53200": (StoreFull, "is out of memory: send smaller batches, or give it more"),
    "53300": (Unavailable, "has no connection left: raise max_connections, or use a pooler"),
    "54000": (StoreFull, "refuses the call as too large: send smaller batches"),
    LOCKED: (Unavailable, "did not get a lock in time: try again"),
    "57014": (Unavailable, "cancelled the statement (statement_timeout?): raise it for this user"),
}


def sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's five-character code of an error. None: the error did not come from the server."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str):
            return code
    return None


def fitting(error: BaseException | None) -> int | None:
    """How many jobs a claim may take that met too many bytes of payload. None: it failed for another reason."""
    if error is None or sqlstate(error) != _TOO_LARGE:
        return None
    detail: str | None = getattr(error, "detail", None)
    return int(detail or 1)


def broken(error: BaseException) -> bool:
    """Did the connection break, so that the outcome of the statement is unknown?"""
    code = sqlstate(error)
    if code is not None:
        return code in _SHUTDOWN or code.startswith("08")
    # The driver's own errors have no code.
    return isinstance(error, OSError | EOFError | TimeoutError) or type(error).__name__ in _DRIVER


def stale(error: BaseException) -> bool:
    """Whether the session refuses writes, because its server became a standby. Nothing was done."""
    return sqlstate(error) == "25006"


def standby(error: BaseException) -> bool:
    """Whether the driver skipped a host because it refuses writes."""
    return type(error).__name__ == "TargetServerAttributeNotMatched"


def unsent(error: BaseException) -> bool:
    """Whether the driver found the connection closed before it sent anything. Then nothing was done."""
    name = type(error).__name__
    return name == "InternalClientError" or (name == "InterfaceError" and "connection is closed" in str(error))


def at_connect(error: BaseException, shown: str) -> HeadraceError:
    """For errors before anything was sent, so that nothing was done."""
    code = sqlstate(error)
    if code is not None and code in _SAYINGS:
        kind, saying = _SAYINGS[code]
        return kind(f"PostgreSQL at {shown} {saying}")
    if "unsupported startup parameter" in str(error):
        return ConfigError(f"PostgreSQL at {shown} {POOLER}")
    if standby(error):
        return Unavailable(f"PostgreSQL at {shown}: no host accepts writes (standbys only?): promote one, or try again")
    if isinstance(error, TimeoutError):
        return Unavailable(
            f"PostgreSQL at {shown} does not answer: is the address right, and is a firewall in between?"
        )
    if broken(error):
        # The text of a socket error names addresses only; a password is never in it.
        reason = str(error) if isinstance(error, OSError) else type(error).__name__
        return Unavailable(f"PostgreSQL at {shown} cannot be reached ({reason}): is it running?")
    return ConfigError(f"PostgreSQL at {shown} refuses the connection: {type(error).__name__}")


def in_call(error: BaseException, shown: str, *, wrote: bool) -> HeadraceError:
    """For errors while a statement was under way."""
    code = sqlstate(error)
    if broken(error):
        if wrote:
            return OutcomeUnknown(f"the connection to PostgreSQL at {shown} broke during a write: it may have happened")
        return Unavailable(f"the connection to PostgreSQL at {shown} broke: try again")
    if code in _MISSING:
        return SchemaMismatch(f"the headrace schema in {shown} is missing or too old: {MIGRATE}")
    if code is not None and code in _SAYINGS:
        kind, saying = _SAYINGS[code]
        return kind(f"PostgreSQL at {shown} {saying}")
    if code in TRANSIENT:
        return Unavailable(f"PostgreSQL at {shown} could not lock a busy row in several tries: try again")
    return StoreError(f"PostgreSQL at {shown}: {error} ({code})")
