"""Turns failures between the http store and its server into headrace's errors. None of them contains a token."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx2
import msgspec

from headrace import errors
from headrace.errors import (
    ConfigError,
    GroupOver,
    HeadraceError,
    IdempotencyConflict,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
    Unsupported,
)
from headrace.store.http.wire import Verb


class _Problem(msgspec.Struct):
    """The part of a problem document that is used."""

    code: str = ""
    detail: str = ""
    scope: str | None = None
    task: str | None = None
    key: str | None = None
    existing: UUID | None = None
    group: UUID | None = None
    queue: str | None = None
    max_length: int | None = None


_problem = msgspec.json.Decoder(_Problem)

_BY_CODE: dict[str, Callable[[str], HeadraceError]] = {
    kind.code: kind
    for kind in (
        errors.StoreFull,
        errors.SchemaMismatch,
        errors.Unsupported,
        errors.Unavailable,
        errors.KeyHeld,
        errors.OutcomeUnknown,
        errors.LeaseLost,
        errors.StoreError,
        errors.BadArguments,
    )
}
_BY_CODE.update(dict.fromkeys(("invalid_value", "invalid_cron", "never_fires", "invalid_timezone"), ConfigError))

# Another try would fail, too: the app must declare the queue, or the caller must use an existing one.
_BY_CODE["too_many_queues"] = ConfigError


class TooManyLooks(Unavailable):
    """This token reads more often than the server allows. The same call may be repeated after `wait` seconds."""

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.ProxyError,
)
"""After these errors the server has not received the call."""
_HUNG_UP = (httpx2.RemoteProtocolError, httpx2.ReadError)


def broken(error: httpx2.HTTPError, verb: Verb, base: str) -> HeadraceError:
    """The call did not end with an answer."""
    plain = base.startswith("http:")
    if isinstance(error, NOT_SENT):
        return Unavailable(f"the server {base} cannot be reached: {_cause(error)}")
    if verb.reads:
        return Unavailable(f"the connection to {base} broke before it had answered: {_cause(error, plain=plain)}")
    return OutcomeUnknown(
        f"the connection to {base} broke during {verb.name}, which may or may not have happened: {_cause(error, plain=plain)}"
    )


def _cause(error: BaseException, *, plain: bool = False) -> str:
    """The cause in a few words. An httpx2 connection error contains no headers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            ours = "for an authority of your own set SSL_CERT_FILE to its certificate"
            return f"its certificate is not valid ({cause.verify_message}), and verification cannot be disabled; {ours}"
        if isinstance(cause, ssl.SSLError):
            return "TLS fails; is the server's URL http:// without s?"
        cause = cause.__cause__ or cause.__context__
    text = str(error) or type(error).__name__
    # A TLS port answers a plain request like this.
    return f"{text.rstrip('.')}; is it https://?" if plain and isinstance(error, _HUNG_UP) else text


def refused(response: httpx2.Response, verb: Verb, base: str) -> HeadraceError:
    """The server answered with an error."""
    try:
        problem = _problem.decode(response.content)
    except msgspec.DecodeError:
        problem = _Problem()
    status, detail = response.status_code, problem.detail
    match problem.code:
        case "unauthorized" | "too_many_failures":
            return ConfigError(f"the server {base} refuses access: {detail}")
        case "missing_scope":
            return Unsupported(
                f"the token for {base} lacks the scope {problem.scope} that {verb.name} needs: use one that has it"
            )
        case "not_found":
            return Unsupported(f"the server {base} has no {verb.name} for this token: {detail or 'it sees less'}")
        case IdempotencyConflict.code if problem.existing is not None:
            return IdempotencyConflict(problem.task or "", problem.key or "", problem.existing)
        case GroupOver.code if problem.group is not None:
            return GroupOver(problem.group)
        case QueueFull.code if problem.queue is not None:
            return QueueFull(problem.queue, problem.max_length or 0)
        case "too_many_polls":
            return TooManyLooks(f"{detail} (the server {base})", _seconds(response.headers.get("Retry-After", "")))
        case code if code in _BY_CODE:
            return _BY_CODE[code](f"{detail} (the server {base})")
        case _:
            pass
    if status >= 500 or status in {408, 429}:
        # From a proxy, or from a server that stops: the outcome of a write is unknown.
        text = f"the server {base} answered {status} to {verb.name}: {detail or 'no reason given'}"
        known = verb.reads or status in {429, 503}
        return Unavailable(text) if known else OutcomeUnknown(text)
    return errors.StoreError(
        f"the server {base} refused {verb.name} ({status}): {detail or 'is it a headrace server?'}"
    )


def _seconds(text: str) -> float:
    return min(float(text), 30.0) if text.isascii() and text.isdigit() else 1.0


def unreadable(base: str) -> HeadraceError:
    """The error for an answer that is not headrace's."""
    return errors.SchemaMismatch(
        f"the server {base} answers in a way that this version does not understand: use the same headrace on both sides"
    )


def checked(version: Any, expected: int, base: str) -> None:
    """Raises SchemaMismatch unless the server uses the same version of the wire."""
    if version != expected:
        raise errors.SchemaMismatch(
            f"the server {base} has version {version} of the store's wire, this headrace {expected}: update the older one"
        )
