"""Following one job: what has changed since a listener's last event, and the listener's position."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from headrace.model.job import Job, JobState, LogLine
from headrace.server.api.view import LogView, WaitedFor, text
from headrace.server.events.feed import Feed, event

log = logging.getLogger("headrace.server")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ID = re.compile(r"(\d{1,9})-([a-z]{4,9})-(\d{1,9})-(\d{1,17})-(\d{1,3})-([0-9a-f]{0,16})", re.ASCII)


class StateEvent(msgspec.Struct, kw_only=True):
    """`state`: the job has a new state, or begins another attempt."""

    state: JobState
    attempt: int
    failures: int
    run_at: datetime | None = None
    note: str | None = None
    waits: list[WaitedFor] = []
    """What a blocked job waits for."""


class ProgressEvent(msgspec.Struct, kw_only=True):
    """`progress`: the last report of its task."""

    progress: float | None = None
    doing: str | None = None


class Heard(msgspec.Struct, frozen=True):
    """A listener's position in the events of a job. As text it is the id of its last event."""

    attempt: int = -1
    state: str = ""
    failures: int = 0
    line_at: int = 0
    """The time of the last log line, in microseconds."""
    lines: int = 0
    """The number of lines with that time."""
    digest: str = ""
    """A hash of the progress."""

    def __str__(self) -> str:
        return f"{self.attempt}-{self.state}-{self.failures}-{self.line_at}-{self.lines}-{self.digest}"

    @property
    def over(self) -> bool:
        """The listener has received the end."""
        return bool(self.state) and JobState(self.state).finished


NOTHING: Final = Heard()


def read_id(given: str | None) -> Heard:
    """The position from a Last-Event-ID. An unreadable one counts as none."""
    match = _ID.fullmatch(given or "")
    if match is None or match[2] not in set(JobState):
        return NOTHING
    return Heard(int(match[1]), match[2], int(match[3]), int(match[4]), int(match[5]), match[6])


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _digest(job: Job) -> str:
    if job.progress is None and job.doing is None:
        return ""
    return hashlib.blake2b(repr((job.progress, job.doing)).encode(errors="replace"), digest_size=8).hexdigest()


def unheard(lines: tuple[LogLine, ...], heard: Heard) -> tuple[LogLine, ...]:
    """The lines of a log that a listener has not received."""
    same = heard.lines
    missed: list[LogLine] = []
    for line in lines:
        at = _micros(line.at)
        if at < heard.line_at or (at == heard.line_at and same > 0):
            same -= at == heard.line_at
            continue
        missed.append(line)
    return tuple(missed)


def added(before: tuple[LogLine, ...], now: tuple[LogLine, ...]) -> tuple[LogLine, ...]:
    """The new lines. The first of them may be dropped already."""
    for start in range(len(before) + 1):
        rest = before[start:]
        if now[: len(rest)] == rest:
            return now[len(rest) :]
    return now


class Follower:
    """One listener of one job. It turns reads into events."""

    def __init__(self, feed: Feed, heard: Heard, ending: Callable[[Job], Any]) -> None:
        """`ending` makes the data of the last event."""
        self._feed = feed
        self._heard = heard
        self._ending = ending
        self._log: tuple[LogLine, ...] | None = None

    def tell(self, job: Job | None) -> bool:
        if job is None:
            self._feed.end(event("gone", {"detail": "the job was pruned or deleted"}))
            return True
        for message in self.news(job):
            self._feed.put(message)
        if job.state.finished:
            self._feed.end()
        return self._feed.ended

    def fail(self, error: Exception) -> None:
        log.debug("the stream of a job ends: %s", error)
        self._feed.end()

    def news(self, job: Job) -> Iterator[bytes]:
        """The events of a read: a new state before its reports, and the end last."""
        if job.state.finished:
            yield from self._reports(job)
            yield from self._state(job)
        else:
            yield from self._state(job)
            yield from self._reports(job)

    def _reports(self, job: Job) -> Iterator[bytes]:
        for line in unheard(job.log, self._heard) if self._log is None else added(self._log, job.log):
            at = _micros(line.at)
            again = self._heard.lines + 1 if at == self._heard.line_at else 1
            yield self._event("log", LogView(line.at, text(line.text)), line_at=at, lines=again)
        self._log = job.log
        if (digest := _digest(job)) != self._heard.digest:
            doing = None if job.doing is None else text(job.doing)
            yield self._event("progress", ProgressEvent(progress=job.progress, doing=doing), digest=digest)

    def _state(self, job: Job) -> Iterator[bytes]:
        now = (job.attempt, job.state.value, job.failures)
        if now == (self._heard.attempt, self._heard.state, self._heard.failures):
            return
        changed = {"attempt": job.attempt, "state": job.state.value, "failures": job.failures}
        if job.state.finished:
            yield self._event("end", self._ending(job), **changed)
            return
        note = None if job.note is None else text(job.note)
        state = StateEvent(
            state=job.state,
            attempt=job.attempt,
            failures=job.failures,
            run_at=job.run_at,
            note=note,
            waits=[WaitedFor(wait.gate, wait.needs) for wait in job.waits],
        )
        yield self._event("state", state, **changed)

    def _event(self, name: str, data: Any, **changed: Any) -> bytes:
        self._heard = msgspec.structs.replace(self._heard, **changed)
        # Before the first state there is no position, so a listener that reconnects begins again.
        return event(name, data, str(self._heard) if self._heard.state else "")
