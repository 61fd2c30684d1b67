"""Audit entries for the http store, derived from what is written: limits, schedules, tokens, old jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.errors import ConfigError
from headrace.model.duration import show
from headrace.model.lease import WorkerOrder
from headrace.model.records import LimitRule, Record, Retention
from headrace.operate import audit, tokens, workers
from headrace.policy.recovery import unpack
from headrace.policy.schedule_entry import ScheduleEntry
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.task.limit import LimitFigures


class OperatorAction(NamedTuple):
    """For the audit log."""

    action: str
    what: str
    jobs: int = 0


def limit(rules: Mapping[str, LimitRule], name: str, rule: LimitRule | None) -> OperatorAction | None:
    """The action of writing this rule."""
    return of_limit(name, _override(rules.get(name)), _override(rule))


def _override(rule: LimitRule | None) -> LimitFigures | None:
    return None if rule is None else unpack(rule.state).override


async def token(store: Store, id: str, value: bytes | None) -> OperatorAction | None:
    """The action of writing this token. Raises ConfigError if it is not a token."""
    before = tokens.read(await store.records(tokens.KIND)).get(id)
    if value is None:
        return None if before is None else _revoked(before)
    after = tokens.read({id: Record(0, value)}).get(id)
    if after is None or after.id != id:
        raise ConfigError("that is not a token: make tokens with `headrace tokens create`")
    if after.revoked_at is not None:
        return None if before is None or before.revoked_at is not None else _revoked(after)
    return OperatorAction("tokens.create", tokens.describe(after))


def _revoked(token: tokens.Token) -> OperatorAction:
    return OperatorAction("tokens.revoke", tokens.label(token))


async def order(store: Store, actor: str, id: str, value: bytes | None) -> tuple[bytes | None, OperatorAction | None]:
    """An order with its author, and the action of giving it. None: the worker has gone, and its order is tidied up."""
    name = {str(worker.id): worker.name for worker in await store.workers()}.get(id)
    if value is None:
        return None, None if name is None else OperatorAction("workers.resume", name)
    written = workers.read(value)
    if written is None or name is None:
        raise ConfigError("that is not an order to a worker: give one with `headrace workers quiet`")
    own = WorkerOrder(written.kind, actor, await store.now())
    return msgspec.json.encode(own), OperatorAction(f"workers.{own.kind}", name)


def pruning(keep: Retention, usual: Settings, jobs: int) -> OperatorAction | None:
    """None: a worker writes this, too."""
    if not jobs or keep.done >= usual.keep_done:
        return None
    return OperatorAction("jobs.prune", f"kept: done {show(keep.done)}", jobs)


def of_limit(name: str, before: LimitFigures | None, after: LimitFigures | None) -> OperatorAction | None:
    """An operator writes figures. Everything else in a limit is written by workers."""
    if before == after:
        return None
    return OperatorAction("limits.reset" if after is None else "limits.set", audit.of_limit(name, after))


def of_schedule(name: str, before: ScheduleEntry | None, after: ScheduleEntry | None) -> OperatorAction | None:
    """None: a worker's tick, or a deploy."""
    if after is None:
        return None if before is None else OperatorAction("schedules.remove", name)
    if before is None:
        return None if after.declared else _added(after)
    if before.paused != after.paused:
        return OperatorAction("schedules.pause" if after.paused else "schedules.resume", name)
    if before.schedule != after.schedule:
        return _added(after) if before.digest == after.digest else None
    if after.recent[:1] != before.recent[:1] and after.recent[0].answer == "run":
        return OperatorAction("schedules.run_now", name, 1)
    return None


def _added(entry: ScheduleEntry) -> OperatorAction:
    return OperatorAction("schedules.add", audit.of_schedule(entry.schedule))
