"""Webhooks at run time: a job's end becomes deliveries, which are jobs of a queue of their own, and these are sent.

A delivery is enqueued *before* its job is settled, so no crash can lose it; when it runs it reads the job and tells what is
true then. If the settlement was refused, the job goes on and its later end is told by that end's own delivery.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, cast

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
from headrace.task.task import AsyncTask, Home, TaskOptions
from headrace.webhooks.declare import NOTHING, Allow, UnsafeWebhook, Webhook, check_url, read_url, sign
from headrace.webhooks.http_post import DeliveryFailed, PostAnswer, Poster

log = logging.getLogger("headrace.webhooks")

QUEUE: Final = "headrace.webhooks"
TASK: Final = "headrace.webhook"
LIMIT: Final = "headrace.webhooks"
PER_HOST: Final = 8
"""Deliveries under way to one host at once, unless an operator sets another rule: a slow one keeps only its own waiting."""
RETRY: Final = Retry(max_attempts=10, base="5s", factor=4, cap="6h")
"""5 s, 20 s, 80 s, 5 min, 21 min, 85 min, 6 h, 6 h, 6 h: about a day."""
MAX_RESULT: Final = 64 * 1024
"""Bytes of a result as JSON; a larger one is fetched from the job."""
REPEATED_WITHIN: Final = timedelta(hours=1)
ALERT_EVERY: Final = timedelta(minutes=5)
"""A queue's alert is told once in so long, however many workers raise it."""
_LOOKS: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between the first looks at a job that is just being settled."""


class Ended(Protocol):
    """What is read of a job whose end is told: one that is claimed, or one as an onlooker sees it."""

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
    """What an app declared, and what its settings add: `app.webhook(…)` fills it, workers read it."""

    def __init__(self, *, secrets: tuple[str, ...] = (), allow: Allow = NOTHING) -> None:
        self.declared: list[Webhook] = []
        self.secrets = secrets
        self.allow = allow

    def add(self, webhook: Webhook) -> None:
        """Declare one; a ConfigError if the same URL was declared with another secret."""
        for other in self.declared:
            if other.url == webhook.url and other.secrets != webhook.secrets:
                raise ConfigError("a webhook's URL is declared twice with different secrets: a receiver has one")
        self.declared.append(webhook)

    def check(self, url: str) -> str:
        """A job's own webhook, or UnsafeWebhook."""
        return check_url(url, self.allow)

    @property
    def signs(self) -> bool:
        """Whether a worker of this app has a secret to sign with, and so serves the queue of deliveries."""
        return bool(self.secrets) or any(each.secrets for each in self.declared)

    def secrets_for(self, url: str) -> tuple[str, ...]:
        """What a delivery to this URL is signed with."""
        return next((each.secrets for each in self.declared if each.url == url and each.secrets), self.secrets)


# ── telling ──────────────────────────────────────────────────────────────────


async def _call(url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
    """The shape of a delivery's arguments."""
    raise AssertionError(url, event, job, attempt, about)


_signature = Signature(_call, name=TASK)
_NO_NEWS: Final[list[NewJob]] = []


class DeliveryMaker:
    """Makes deliveries of ends. Whoever settles a job asks it first, and enqueues what it answers."""

    def __init__(self, declared: Sequence[Webhook]) -> None:
        self._declared = declared

    def concerns(self, task: str) -> bool:
        """Whether jobs of this task may be told of by the app's own webhooks."""
        return any(each.task in {None, task} for each in self._declared)

    def news(self, job: Ended, settlement: Settlement) -> list[NewJob]:
        """The deliveries to be enqueued before this is settled; mostly none."""
        if not isinstance(settlement, Finish) or (job.options is None and not self._declared) or job.queue == QUEUE:
            return _NO_NEWS
        event, options = settlement.state.value, _options(job)
        urls = dict.fromkeys(each.url for each in self._declared if each.wants(event, job.queue, job.task))
        if event != JobState.CANCELLED and options.webhook is not None:
            urls[options.webhook] = None
        if not urls:
            return _NO_NEWS
        tenant = _whose(job, options)
        about = {"task": job.task, "queue": job.queue, "tenant": tenant, "note": settlement.note}
        return [
            _delivery(url, event, str(job.id), job.attempt, about, tenant=tenant, ttl=REPEATED_WITHIN) for url in urls
        ]

    async def remade(
        self, store: Store, batch: Batch, sees: Callable[[Job], bool], sees_queue: Callable[[str], bool]
    ) -> Batch:
        """What a worker elsewhere wants to tell, made anew from what is true: it could say anything of any job."""
        told: dict[JobId, tuple[str, int, str | None]] = {}
        alerts: dict[str, int] = {}
        for each in batch.jobs:
            (_, event, subject, attempt, about), _ = _signature.decode(each.payload)
            if event in {JobState.DONE, JobState.DEAD}:
                note = about.get("note")
                told[parse_id(subject)] = event, attempt, note if isinstance(note, str) else None
            elif event == "alert" and sees_queue(subject) and isinstance(threshold := about.get("threshold"), int):
                alerts[subject] = threshold
        news = await self._alerts(store, alerts) if alerts else []
        for job in await store.get(list(told)):
            if job is None or job.state is not JobState.RUNNING or not sees(job):
                continue
            event, attempt, note = told[job.id]
            if job.attempt == attempt:
                end = Finish(JobState.DONE) if event == JobState.DONE else Finish(JobState.DEAD, note=note)
                news += self.news(job, end)
        return Batch(batch.id, news)

    async def _alerts(self, store: Store, thresholds: Mapping[str, int]) -> list[NewJob]:
        """Of queues that are over what a worker says to be their threshold."""
        now = await store.now()
        dead = {each.queue: each.dead for each in (await store.stats()).queues}
        return [
            delivery
            for queue, threshold in thresholds.items()
            if 0 < threshold <= dead.get(queue, 0)
            for delivery in self.alert(DeadAlert(queue, dead[queue], threshold), now)
        ]

    def alert(self, alert: DeadAlert, at: datetime) -> list[NewJob]:
        """The deliveries that tell of a queue with too many dead letters."""
        about = {"queue": alert.queue, "dead": alert.dead, "threshold": alert.threshold, "at": at.isoformat()}
        urls = dict.fromkeys(each.url for each in self._declared if each.wants("alert", alert.queue))
        return [_delivery(url, "alert", alert.queue, 0, about, tenant="", ttl=ALERT_EVERY) for url in urls]


def batch_of(news: Iterable[NewJob]) -> Batch:
    """One enqueue call."""
    return Batch(new_batch(), list(news))


def all_deliveries(batch: Batch) -> bool:
    """Whether this is a delivery that headrace made, or looks like one."""
    return bool(batch.jobs) and all(job.task == TASK and job.lane.queue == QUEUE for job in batch.jobs)


def _options(job: Ended) -> JobOptions:
    try:
        return decode_options(job.options)
    except BadArguments:
        return JobOptions()


def _whose(job: Ended, options: JobOptions | None = None) -> str:
    """Its tenant; where tenants do not take turns that is no part of its lane."""
    return job.tenant or (options or _options(job)).tenant or ""


def _delivery(
    url: str, event: str, subject: str, attempt: int, about: dict[str, Any], *, tenant: str, ttl: timedelta
) -> NewJob:
    where = hashlib.blake2b(url.encode(), digest_size=9).hexdigest()
    # The limit is one of the receiver's host, so that whoever does not answer keeps nobody else's deliveries waiting.
    host = read_url(url).authority
    key = host if len(host) <= 128 else hashlib.blake2b(host.encode(), digest_size=16).hexdigest()
    return NewJob(
        TASK,
        _signature.encode((url, event, subject, attempt, about), {}),
        Lane(QUEUE, 0, tenant, (f"{LIMIT}:{key}",)),
        # Whoever takes over a job that was told and not settled tells the same once more: the first telling stands.
        key=Key(f"{subject}.{attempt}.{where}", ttl, b"told"),
    )


# ── sending ──────────────────────────────────────────────────────────────────


class Sender:
    """Runs deliveries in a worker: the function behind the task."""

    def __init__(self, webhooks: Webhooks, store: Store, *, slots: int, poster: Poster | None = None) -> None:
        self._webhooks = webhooks
        self._store = store
        self._poster = poster or Poster(webhooks.allow)
        self._most = max(1, slots // 2)
        """Under way at once: the other slots are for the app's own tasks."""
        self._busy = 0
        self._ruled = False

    def task(self) -> AsyncTask[..., str]:
        """To be put among the worker's tasks; it is never enqueued through this object."""

        async def deliver(url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
            return await self.deliver(url, event, job, attempt, about)

        options = TaskOptions(queue=QUEUE, retry=RETRY, timeout=timedelta(seconds=30))
        return AsyncTask[..., str](cast("Home", None), deliver, TASK, options)

    async def deliver(self, url: str, event: str, job: str, attempt: int, about: dict[str, Any]) -> str:
        """One delivery: what to say, signed and sent. Answers what became of it, for people."""
        if self._busy >= self._most:
            raise Snooze(timedelta(seconds=1))
        self._busy += 1
        try:
            if not self._ruled:
                # Only if there is none: an operator's own rule stays. A worker over HTTP may not, and others do.
                with contextlib.suppress(Unsupported):
                    await self._store.limit(LIMIT, LimitRule(concurrency=PER_HOST), None)
                self._ruled = True
            message: _Message | None
            if current_job().queue != QUEUE:
                raise Dead(f"deliveries are jobs of the queue {QUEUE}: this one was put elsewhere by hand")
            if event == "alert":
                message = _Message(str(current_job().id), "dead.alert", about.pop("at", _now()), about)
            else:
                id = parse_id(job)
                found = await self._settled(id, attempt)
                if found is not None and _whose(found) != current_job().tenant:
                    raise Dead("this delivery is one tenant's and tells of another's job: it was made by hand")
                message = _gone(id, event, attempt, about) if found is None else _of(found, attempt)
            if message is None:
                return "nothing to tell: the job went on"
            return await self._send(url, message)
        finally:
            self._busy -= 1

    async def _settled(self, id: JobId, attempt: int) -> Job | None:
        """The job once the attempt is settled; None: it is gone."""
        for pause in (*_LOOKS, None):
            [job] = await self._store.get([id])
            if job is None or job.state is not JobState.RUNNING or job.attempt != attempt:
                return job
            if pause is not None:
                await asyncio.sleep(pause)
        # Its worker has died, or the store is slow: either way this will be decided.
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
            answer = await self._poster.post(url, headers, body)
        except UnsafeWebhook as error:
            raise Dead(f"{error.code}: {error}") from None
        _judge(url, answer)
        return f"answered {answer.status}"


def _judge(url: str, answer: PostAnswer) -> None:
    """2xx is taken; 410 ends it; whatever else is tried again, for it may be mended: a deploy, a rotated secret."""
    if 200 <= answer.status < 300:
        return
    what = f"{read_url(url).shown} answered {answer.status}" + (f": {answer.said}" if answer.said else "")
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
    """What is true of the job now; None: this attempt was not its end."""
    if job.attempt != attempt or job.state not in {JobState.DONE, JobState.DEAD}:
        return None
    data = _data(job.id, job.state, attempt, task=job.task, queue=job.queue, tenant=_whose(job), note=job.note)
    data |= {"failures": job.failures, "enqueued_at": job.enqueued_at, "finished_at": job.finished_at}
    if job.state is JobState.DONE:
        result, omitted = result_of(job.result)
        data |= {"result": result, "result_omitted": omitted or job.result_expired}
    elif job.history:
        last = job.history[-1]
        data["failure"] = {"attempt": last.attempt, "kind": last.kind, "message": last.message, "at": last.at}
    return _Message(f"{job.id}.{attempt}", f"job.{job.state}", (job.finished_at or job.enqueued_at).isoformat(), data)


def _gone(job: JobId, event: str, attempt: int, about: dict[str, Any]) -> _Message:
    """The job was pruned or deleted before it could be told: what was known when it was settled."""
    data = _data(job, event, attempt, **about)
    return _Message(f"{job}.{attempt}", f"job.{event}", _now(), data | {"kept": False})


def _data(id: object, state: str, attempt: int, **about: Any) -> dict[str, Any]:
    return {"id": str(id), "state": str(state), "attempt": attempt, **about}


def result_of(stored: bytes | None, most: int = MAX_RESULT) -> tuple[Any, bool]:
    """What a task returned, as JSON can say it; True: it is too large, or no such thing."""
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
