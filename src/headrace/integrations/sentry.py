"""Sentry: events of tasks carry the task, the job and the attempt, and failures are grouped as dead letters are.

The SDK opens a socket when it is imported, so the functions here import it, and the module does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace.errors import ConfigError
from headrace.integrations.masking import hidden_values
from headrace.model.job import Failure
from headrace.model.outcome import Cancel, Snooze
from headrace.policy import fingerprint
from headrace.task.codec import scrub
from headrace.task.codec.hooks import is_dict, is_list
from headrace.task.context import running
from headrace.worker.outcome_of import describe, kind_of

if TYPE_CHECKING:
    from sentry_sdk import Scope

    from headrace.app import Headrace
    from headrace.task.context import JobContext
    from headrace.task.hooks import AsyncCall, FollowUp, SyncCall

_instrumented: WeakSet[Headrace] = WeakSet()


def instrument(app: Headrace) -> None:
    """Send failures of the app's tasks to Sentry: `instrument(app)`, once, beside the app and `sentry_sdk.init`.

    Call it where the app is declared, before other middleware, so that every process which imports the app has it. Each
    event that a task causes has the tags `headrace.task`, `headrace.job_id` and `headrace.attempt`. A failure also has
    the fingerprint of its dead letter. Values that the task redacts are masked.
    """
    from sentry_sdk.integrations.logging import ignore_logger

    if app in _instrumented:
        raise ConfigError("the app is instrumented already: call sentry.instrument(app) once")
    _instrumented.add(app)
    # The worker logs each failure, too. Without tags, and outside the group, these would be second events.
    ignore_logger("headrace.job.failed")
    ignore_logger("headrace.job.dead")

    async def around_async(job: JobContext, call: AsyncCall) -> Any:
        with _attempt(app, job):
            return await call()

    def around_sync(job: JobContext, call: SyncCall) -> Any:
        with _attempt(app, job):
            return call()

    app.middleware(around_async)
    app.middleware(around_sync)
    app.on_failure(_tell)


@contextmanager
def _attempt(app: Headrace, job: JobContext) -> Generator[None]:
    import sentry_sdk

    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, job)
        scope.add_event_processor(_masks(app))
        try:
            yield
        except (Snooze, Cancel):
            raise
        except Exception as error:
            message, trace = describe(error)
            failure = Failure(job.attempt, kind_of(error), message, trace, datetime.now(UTC))
            _group(scope, failure, job.task)
            sentry_sdk.capture_exception(error)
            raise


def _tell(job: JobContext, failure: Failure, follows: FollowUp) -> None:
    """Report a failure that the task's code did not raise, such as a timeout or a lost process."""
    if not failure.kind.islower() or "." in failure.kind:
        return  # It is the name of an exception, which was sent when it was raised.
    import sentry_sdk

    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, job)
        _group(scope, failure, job.task)
        text = f"{job.task}: {failure.kind}: {failure.message}"
        sentry_sdk.capture_message(text, level="error" if follows.dead else "warning")


def _describe(scope: Scope, job: JobContext) -> None:
    scope.set_transaction_name(job.task, source="task")
    scope.set_tag("headrace.task", job.task)
    scope.set_tag("headrace.job_id", str(job.id))
    scope.set_tag("headrace.attempt", job.attempt)
    scope.set_tag("headrace.queue", job.queue)
    if job.tenant:
        scope.set_tag("headrace.tenant", job.tenant)


def _group(scope: Scope, failure: Failure, task: str) -> None:
    """Make one issue in Sentry of what is one group of dead letters."""
    cause = fingerprint.of_failure(failure, task)
    scope.set_tag("headrace.fingerprint", cause.id)
    scope.fingerprint = ["headrace", cause.id]


def _masks(app: Headrace) -> Callable[[Any, Any], Any]:
    """Masks what the task redacts in everything that an event holds, also in messages and local variables."""
    job = running().job

    def mask(event: Any, _: Any) -> Any:
        hidden = hidden_values(app, job)
        if hidden is None:
            return None  # The event might show a secret. The failure is in the dead letter, masked.
        return _masked(event, hidden) if hidden else event

    return mask


def _masked(value: Any, hidden: Collection[str]) -> Any:
    if isinstance(value, str):
        return scrub(value, hidden)
    if is_dict(value):
        return {name: _masked(field, hidden) for name, field in value.items()}
    if is_list(value):
        return [_masked(item, hidden) for item in value]
    return value
