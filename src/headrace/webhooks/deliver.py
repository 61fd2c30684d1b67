"""Webhooks at run time: a job's end becomes deliveries, which are jobs of a queue of their own, and these are sent.

A delivery is enqueued *before* its job is settled, so no crash can lose it; when it runs, it reads the job and reports
its state. If the settlement was refused, the job goes on, and its later end has a delivery of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from headrace.errors import BadArguments, ConfigError, Unsupported
from headrace.model.job import Batch, Job, JobId, JobState, Key, NewJob, new_batch, parse_id
from headrace.model.lane import Lane
from headrace.model.outcome import Dead, Finish, RetryAfter, Settlement, Snooze
from headrace.model.records import LimitRule
from headrace.policy.queue import DeadAlert
from headrace.store.contract import Store
from headrace.task.codec import JobOptions, Signature, decode_options
from headrace.task.context import current_job
from headrace.task.retry import Retry
from headrace.task.task import AsyncTask, Home
from headrace.task.task_options import TaskOptions
from headrace.webhooks.declare import NOTHING, Allow, DeliveryFailed, UnsafeWebhook, Webhook, check_url, read_url, sign

if TYPE_CHECKING:
    from headrace.webhooks.http_post import PostAnswer, Poster

log = logging.getLogger("headrace.webhooks")

QUEUE: Final = "headrace.webhooks"
TASK: Final = "headrace.webhook"
LIMIT: Final = "headrace.webhooks"
PER_HOST: Final = 8
"""Deliveries under way to one host at once, unless an operator sets another rule. A slow host delays only its own."""
RETRY: Final = Retry(max_attempts=10, base="5s", factor=4, cap="6h")
"""5 s, 20 s, 80 s, 5 min, 21 min, 85 min, 6 h, 6 h, 6 h: about a day."""
MAX_RESULT: Final = 64 * 1024
"""Bytes of a result as JSON. Receivers fetch a larger one from the job."""
REPEATED_WITHIN: Final = timedelta(hours=1)
ALERT_EVERY: Final = timedelta(minutes=5)
"""How often a queue's alert is sent at most, however many workers raise it."""
_MOST_TOGETHER: Final = 1000
"""Deliveries that one enqueue call stores."""
_LOOKS: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between the first reads of a job whose settlement is under way."""


class Ended(Protocol):
    """The fields of a job that a delivery needs: of a claimed job, or of one read from the store."""

    @property
    def id(self) -> JobId: ...
    @property
    def attempt(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def options(self) -> bytes | None: ...


class Webhooks:
    """The webhooks of an app and of its settings. `app.webhook(…)` adds to it, workers read it."""

    def __init__(self, *, secrets: tuple[str, ...] = (), allow: Allow = NOTHING) -> None:
        self.declared: list[Webhook] = []
        self.secrets = secrets
        self.allow = allow

    def add(self, webhook: Webhook) -> None:
        """Declare a webhook. Raises ConfigError if the same URL was declared with another secret."""
        for other in self.declared:
            if other.url == webhook.url and other.secrets != webhook.secrets:
                raise ConfigError("a webhook's URL is declared twice with different secrets: declare only one")
        self.declared.append(webhook)

    def check_webhook(self, url: str) -> str:
        """A job's own webhook, or UnsafeWebhook."""
        return check_url(url, self.allow)

    @property
    def signs(self) -> bool:
        """Whether a worker of this app has a secret to sign with, and so serves the queue of deliveries."""
        return bool(self.secrets) or any(webhook.secrets for webhook in self.declared)

    def secrets_for(self, url: str) -> tuple[str, ...]:
        """The secrets that sign a delivery to this URL."""
        return next(
            (webhook.secrets for webhook in self.declared if webhook.url == url and webhook.secrets), self.secrets
        )


# ── making deliveries ────────────────────────────────────────────────────────


async def _call(url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
    """The signature of a delivery's arguments."""
    raise AssertionError(url, event, job, attempt, about)


_signature = Signature(_call, name=TASK)
_NO_NEWS: Final[list[NewJob]] = []


class DeliveryMaker:
    """Makes the deliveries for the ends of jobs. The settling component enqueues them before the settlement."""

    def __init__(self, declared: Sequence[Webhook]) -> None:
        self._declared = declared

    def concerns(self, task: str) -> bool:
        """Whether one of the app's webhooks may report jobs of this task."""
        return any(webhook.task in {None, task} for webhook in self._declared)

    def news(self, job: Ended, settlement: Settlement) -> list[NewJob]:
        """The deliveries to enqueue before this settlement. Mostly none."""
        if not isinstance(settlement, Finish) or (job.options is None and not self._declared) or job.queue == QUEUE:
            return _NO_NEWS
        event, options = settlement.state.value, _options(job)
        urls = dict.fromkeys(webhook.url for webhook in self._declared if webhook.wants(event, job.queue, job.task))
        if event != JobState.CANCELLED and options.webhook is not None:
            urls[options.webhook] = None
        if not urls:
            return _NO_NEWS
        tenant = _tenant_of(job, options)
        about = {"task": job.task, "queue": job.queue, "tenant": tenant, "note": settlement.note}
        return [
            _delivery(url, event, str(job.id), job.attempt, about, tenant=tenant, ttl=REPEATED_WITHIN) for url in urls
        ]

    async def remade(
        self, store: Store, batch: Batch, sees: Callable[[Job], bool], sees_queue: Callable[[str], bool]
    ) -> Batch:
        """Make a remote worker's deliveries again from the stored jobs, because a worker could report anything."""
        ends: dict[JobId, tuple[str, int, str | None]] = {}
        alerts: dict[str, int] = {}
        for delivery in batch.jobs:
            (_, event, subject, attempt, about), _ = _signature.decode(delivery.payload)
            if event in {JobState.DONE, JobState.DEAD}:
                note = about.get("note")
                ends[parse_id(subject)] = event, attempt, note if isinstance(note, str) else None
            elif event == "alert" and sees_queue(subject) and isinstance(threshold := about.get("threshold"), int):
                alerts[subject] = threshold
        news = await self._alerts(store, alerts) if alerts else []
        for job in await store.get(list(ends)):
            if job is None or job.state is not JobState.RUNNING or not sees(job):
                continue
            event, attempt, note = ends[job.id]
            if job.attempt == attempt:
                end = Finish(JobState.DONE) if event == JobState.DONE else Finish(JobState.DEAD, note=note)
                news += self.news(job, end)
        return Batch(batch.id, news)

    async def _alerts(self, store: Store, thresholds: Mapping[str, int]) -> list[NewJob]:
        """Alerts of queues whose dead letters reach the threshold that the worker names."""
        now = await store.now()
        dead = {figures.queue: figures.dead for figures in (await store.stats()).queues}
        return [
            delivery
            for queue, threshold in thresholds.items()
            if 0 < threshold <= dead.get(queue, 0)
            for delivery in self.alert(DeadAlert(queue, dead[queue], threshold), now)
        ]

    def alert(self, alert: DeadAlert, at: datetime) -> list[NewJob]:
        """The deliveries for a queue with too many dead letters."""
        about = {"queue": alert.queue, "dead": alert.dead, "threshold": alert.threshold, "at": at.isoformat()}
        urls = dict.fromkeys(webhook.url for webhook in self._declared if webhook.wants("alert", alert.queue))
        return [_delivery(url, "alert", alert.queue, 0, about, tenant="", ttl=ALERT_EVERY) for url in urls]


def batch_of(news: Iterable[NewJob]) -> Batch:
    """One enqueue call."""
    return Batch(new_batch(), list(news))


def batches_of(news: Sequence[NewJob]) -> list[Batch]:
    """Enqueue calls of at most `_MOST_TOGETHER` deliveries.

    A store may refuse a call of more lanes, and each tenant and each receiver has its own. Every delivery has a key, so the calls
    need not be one: a call that is repeated makes no delivery twice.
    """
    return [batch_of(news[at : at + _MOST_TOGETHER]) for at in range(0, len(news), _MOST_TOGETHER)]


def all_deliveries(batch: Batch) -> bool:
    """Whether this is a delivery that headrace made, or looks like one."""
    return bool(batch.jobs) and all(job.task == TASK and job.lane.queue == QUEUE for job in batch.jobs)


def _options(job: Ended) -> JobOptions:
    try:
        return decode_options(job.options)
    except BadArguments:
        return JobOptions()


def _tenant_of(job: Ended, options: JobOptions | None = None) -> str:
    """The job's tenant, which is not part of its lane in queues where tenants do not take turns."""
    return job.tenant or (options or _options(job)).tenant or ""


def _delivery(
    url: str, event: str, subject: str, attempt: int, about: dict[str, Any], *, tenant: str, ttl: timedelta
) -> NewJob:
    where = hashlib.blake2b(url.encode(), digest_size=9).hexdigest()
    # The limit belongs to the receiver's host, so that a host that does not answer delays no other host's deliveries.
    host = read_url(url).authority
    key = host if len(host) <= 128 else hashlib.blake2b(host.encode(), digest_size=16).hexdigest()
    return NewJob(
        TASK,
        _signature.encode((url, event, subject, attempt, about), {}),
        Lane(QUEUE, 0, tenant, (f"{LIMIT}:{key}",)),
        # A worker that takes over a job after its delivery was enqueued enqueues it again. The key keeps the first one.
        key=Key(f"{subject}.{attempt}.{where}", ttl, b"told"),
    )


# ── sending ──────────────────────────────────────────────────────────────────


class Sender:
    """Runs deliveries in a worker: the function behind the task."""

    def __init__(self, webhooks: Webhooks, store: Store, *, slots: int, poster: Poster | None = None) -> None:
        self._webhooks = webhooks
        self._store = store
        self._poster = poster
        self._most = max(1, slots // 2)
        """Under way at once: the other slots are for the app's own tasks."""
        self._busy = 0
        self._ruled = False

    def task(self) -> AsyncTask[..., str]:
        """The task to add to the worker's tasks. It is never enqueued through this object."""

        async def deliver(url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
            return await self.deliver(url, event, job, attempt, about)

        options = TaskOptions(queue=QUEUE, retry=RETRY, timeout=timedelta(seconds=30))
        return AsyncTask[..., str](cast("Home", None), deliver, TASK, options)

    async def deliver(self, url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
        """Sign and send one delivery. Returns the result as a text for display."""
        if self._busy >= self._most:
            raise Snooze(timedelta(seconds=1))
        self._busy += 1
        try:
            if not self._ruled:
                # Written only if there is none, so that an operator's rule stays. A worker over HTTP may not write it.
                with contextlib.suppress(Unsupported):
                    await self._store.limit(LIMIT, LimitRule(concurrency=PER_HOST), None)
                self._ruled = True
            message: _Message | None
            if current_job().queue != QUEUE:
                raise Dead(f"deliveries are jobs of the queue {QUEUE}: this one was enqueued elsewhere by hand")
            if event == "alert":
                message = _Message(str(current_job().id), "dead.alert", about.pop("at", _now()), about)
            else:
                id = parse_id(job)
                settled_job = await self._settled(id, attempt)
                if settled_job is not None and _tenant_of(settled_job) != current_job().tenant:
                    raise Dead("this delivery of one tenant reports another tenant's job: it was made by hand")
                message = _gone(id, event, attempt, about) if settled_job is None else _of(settled_job, attempt)
            if message is None:
                return "nothing to deliver: the job went on"
            return await self._send(url, message)
        finally:
            self._busy -= 1

    async def _settled(self, id: JobId, attempt: int) -> Job | None:
        """The job after the attempt is settled. None: it no longer exists."""
        for pause in (*_LOOKS, None):
            [job] = await self._store.get([id])
            if job is None or job.state is not JobState.RUNNING or job.attempt != attempt:
                return job
            if pause is not None:
                await asyncio.sleep(pause)
        # Its worker has died, or the store is slow. Try later, when the attempt is settled.
        raise Snooze(timedelta(seconds=min(15, current_job().attempt)))

    async def _send(self, url: str, message: _Message) -> str:
        secrets = self._webhooks.secrets_for(url)
        if not secrets:
            raise DeliveryFailed("this worker has no secret for this webhook: set HEADRACE_WEBHOOK_SECRET")
        body = message.body()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "headrace-webhooks",
            **sign(secrets, message.id, int(time.time()), body),
        }
        try:
            answer = await self._posting().post(url, headers, body)
        except UnsafeWebhook as error:
            raise Dead(f"{error.code}: {error}") from None
        _judge(url, answer)
        return f"answered {answer.status}"

    def _posting(self) -> Poster:
        """Most workers deliver nothing, so the HTTP library is imported for the first delivery."""
        if self._poster is None:
            from headrace.webhooks.http_post import Poster

            self._poster = Poster(self._webhooks.allow)
        return self._poster


def _judge(url: str, answer: PostAnswer) -> None:
    """2xx succeeds, 410 ends the delivery. Any other status is tried again: a deploy or a new secret may fix it."""
    if 200 <= answer.status < 300:
        return
    what = f"{read_url(url).shown} answered {answer.status}" + (f": {answer.excerpt}" if answer.excerpt else "")
    if answer.status == 410:
        raise Dead(what)
    if 300 <= answer.status < 400:
        raise DeliveryFailed(f"{what} (redirects are not followed: give the webhook its new URL)")
    if answer.status in {429, 503} and answer.retry_after is not None:
        raise RetryAfter(timedelta(seconds=min(max(answer.retry_after, 1), 6 * 3600)), what)
    raise DeliveryFailed(what)


class _Message(msgspec.Struct, frozen=True):
    id: str
    type: str
    timestamp: str
    data: dict[str, Any]

    def body(self) -> bytes:
        return msgspec.json.encode({"type": self.type, "timestamp": self.timestamp, "data": self.data})


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _of(job: Job, attempt: int) -> _Message | None:
    """The job's state now. None: this attempt was not its end."""
    if job.attempt != attempt or job.state not in {JobState.DONE, JobState.DEAD}:
        return None
    data = _data(job.id, job.state, attempt, task=job.task, queue=job.queue, tenant=_tenant_of(job), note=job.note)
    data |= {"failures": job.failures, "enqueued_at": job.enqueued_at, "finished_at": job.finished_at}
    if job.state is JobState.DONE:
        result, omitted = result_of(job.result)
        data |= {"result": result, "result_omitted": omitted or job.result_expired}
    elif job.history:
        last = job.history[-1]
        data["failure"] = {"attempt": last.attempt, "kind": last.kind, "message": last.message, "at": last.at}
    return _Message(f"{job.id}.{attempt}", f"job.{job.state}", (job.finished_at or job.enqueued_at).isoformat(), data)


def _gone(job: JobId, event: str, attempt: int, about: dict[str, Any]) -> _Message:
    """The body for a job that was pruned or deleted meanwhile: what was known at its settlement."""
    data = _data(job, event, attempt, **about)
    return _Message(f"{job}.{attempt}", f"job.{event}", _now(), data | {"kept": False})


def _data(id: object, state: str, attempt: int, **about: Any) -> dict[str, Any]:
    return {"id": str(id), "state": str(state), "attempt": attempt, **about}


def result_of(stored: bytes | None, most: int = MAX_RESULT) -> tuple[Any, bool]:
    """A task's result as JSON. True: it is too large, or JSON cannot express it."""
    if stored is None:
        return None, False
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            value = decode(stored)
            size = len(msgspec.json.encode(value))
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            continue
        return (value, False) if size <= most else (None, True)
    return None, True
