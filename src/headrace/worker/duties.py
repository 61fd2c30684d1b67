"""What an app's workers do besides running its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.outbox import Outbox
from headrace.policy.queue import QueueOptions
from headrace.policy.schedule import Schedule
from headrace.task.hooks import Hooks
from headrace.task.limit import LimitDeclaration
from headrace.webhooks.deliver import Webhooks
from headrace.worker.dead_alert import Hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """Declared on the app. The first worker that finds a duty due does it."""

    queues: Mapping[str, QueueOptions] = field(default_factory=dict[str, QueueOptions])
    dead_alert_hooks: Sequence[Hook] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    limits: Mapping[str, LimitDeclaration] = field(default_factory=dict[str, LimitDeclaration])
    outbox: Outbox | None = None
    webhooks: Webhooks = field(default_factory=Webhooks)
    hooks: Hooks = field(default_factory=Hooks)
