"""Problems: every error over HTTP, as RFC 9457 documents with a stable code; never a stack trace, SQL or a path."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from headrace import errors
from headrace.errors import HeadraceError

MEDIA = "application/problem+json"


class Problem(Exception):
    """Raised anywhere in an endpoint. It becomes the answer."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra


class ProblemDocument(msgspec.Struct, kw_only=True):
    """The body of an error."""

    type: str
    """`urn:headrace:problem:` and the code."""
    title: str
    status: int
    detail: str
    """One sentence that says what to do."""
    code: str
    """Stable, for programs."""
    request_id: str
    path: str | None = None
    """The place in the request body, if the error is there."""
    scope: str | None = None
    """The scope that the token lacks, if that is the error."""


def document(problem: Problem, request_id: str) -> dict[str, Any]:
    """The body of a problem's answer."""
    return {
        "type": f"urn:headrace:problem:{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        # Parts of messages that are for Python callers.
        "detail": problem.detail.replace(" or a timedelta", ""),
        "code": problem.code,
        "request_id": request_id,
        **problem.extra,
    }


_STATUS: dict[type[HeadraceError], int] = {
    errors.JobNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.IdempotencyConflict: 409,
    errors.LeaseLost: 409,
    errors.QueueFull: 429,
    errors.ConfigError: 422,
    errors.TaskError: 422,
    errors.EnqueueError: 422,
    errors.Unsupported: 501,
    errors.StoreFull: 507,
    errors.StoreError: 503,
}

_AWAY = "the store does not answer: try again in a moment"
_WORDS: dict[type[HeadraceError], str] = {
    # The store's own messages are for operators, because they may name hosts, files and statements.
    errors.Unavailable: _AWAY,
    errors.KeyHeld: "a transaction that has not ended holds this key or unique lock: try again in a moment",
    errors.OutcomeUnknown: "the store stopped answering while it was writing: look whether it happened, or repeat the call with a key",
    errors.StoreFull: "the store has no room left: nothing was stored",
    errors.StoreDamaged: "the store's file is gone or damaged: nothing is stored until the operator restores it",
    errors.SchemaMismatch: "the store's schema does not fit this version: the operator runs `headrace migrate`",
    errors.StoreError: "the store did not do what was asked",
    # The original message names the job, which may belong to another tenant.
    errors.IdempotencyConflict: "this key made a job with other arguments before: use another key, or the same arguments",
}
_RETRY_AFTER = {"Retry-After": "1"}


def of(error: HeadraceError) -> Problem | None:
    """The Problem for one of headrace's own errors. None: the error is the server's fault."""
    for kind in type(error).__mro__:
        status = _STATUS.get(kind)
        if status is None:
            continue
        words = next((_WORDS[kind] for kind in type(error).__mro__ if kind in _WORDS), None)
        code = "invalid_value" if type(error) is errors.ConfigError else error.code
        return Problem(status, code, words or str(error), headers=_RETRY_AFTER if status in {429, 503} else None)
    return None


def missing_scope(scope: str) -> Problem:
    """The caller's token may not do this."""
    return Problem(403, "missing_scope", f"this token lacks the scope {scope}", scope=str(scope))


def not_found(what: str = "there is nothing here") -> Problem:
    """The same answer for a missing resource and for one that this caller may not see."""
    return Problem(404, "not_found", what)
