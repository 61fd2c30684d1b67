"""Checks which settings and tasks do not work well together. `headrace doctor` prints the findings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol

from headrace.errors import ConfigError
from headrace.model import duration

TRACE_ID: Final = "{trace_id}"
"""What the id of a job's trace replaces in the setting `trace_url`."""


class SettingsProblem(NamedTuple):
    """One finding of `headrace doctor` about the settings."""

    level: Literal["warning", "error"]
    about: str
    message: str


class DeclaredOptions(Protocol):
    """The part of a task's options that the checks read."""

    @property
    def queue(self) -> str: ...
    @property
    def executor(self) -> str: ...
    @property
    def timeout(self) -> timedelta | None: ...
    @property
    def result_ttl(self) -> timedelta | None: ...


class DeclaredTask(Protocol):
    """The part of a task that the checks read. Tasks are in a higher package."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> DeclaredOptions: ...


class Values(Protocol):
    """The part of the settings that the checks read. Settings are in a higher package."""

    @property
    def url(self) -> str: ...
    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def lease(self) -> timedelta: ...
    @property
    def heartbeat(self) -> timedelta: ...
    @property
    def poll(self) -> timedelta: ...
    @property
    def reap(self) -> timedelta: ...
    @property
    def drain(self) -> timedelta: ...
    @property
    def kill_grace(self) -> timedelta: ...
    @property
    def keep_done(self) -> timedelta: ...
    @property
    def durability(self) -> str: ...


def advise(at: Values, tasks: Mapping[str, DeclaredTask]) -> list[SettingsProblem]:
    """Every rule that is broken."""
    return _rules(at) + _endless(tasks) + [problem for task in tasks.values() for problem in _task_problems(at, task)]


def refuse_short_lease(at: Values) -> None:
    """Raise ConfigError if the lease ends before the first heartbeat."""
    lease, heartbeat = at.lease, at.heartbeat
    if lease <= heartbeat:
        raise ConfigError(
            f"lease {duration.show(lease)} ends before the next heartbeat ({duration.show(heartbeat)}), so every long job would be taken "
            f"away: set lease to at least {duration.show(3 * heartbeat)}, or heartbeat lower"
        )


def _endless(tasks: Mapping[str, DeclaredTask]) -> list[SettingsProblem]:
    names = sorted(task.name for task in tasks.values() if task.options.timeout is None)
    if not names:
        return []
    some = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    text = (
        f"no timeout: a job of {some} that hangs keeps its slot, and its lease is renewed, until it is cancelled; "
        'set one, e.g. timeout="10m"'
    )
    return [SettingsProblem("warning", "timeout", text)]


def _rules(at: Values) -> list[SettingsProblem]:
    show = duration.show
    rules: list[tuple[bool, Literal["warning", "error"], str, str]] = [
        (
            at.lease < 3 * at.heartbeat,
            "error",
            "lease",
            (
                f"lease {show(at.lease)} is shorter than three heartbeats of {show(at.heartbeat)}: one slow answer and "
                f"running jobs are taken away; set lease to at least {show(3 * at.heartbeat)} or heartbeat lower"
            ),
        ),
        (
            at.poll > timedelta(seconds=1),
            "warning",
            "poll",
            f"poll {show(at.poll)}: a job whose hint is lost waits that long; set at most 1s",
        ),
        (
            at.reap > at.lease,
            "warning",
            "reap",
            f"reap {show(at.reap)} is longer than the lease {show(at.lease)}: a dead worker's jobs wait for both; set 1s",
        ),
        (
            at.drain > timedelta(seconds=28),
            "warning",
            "drain",
            f"drain {show(at.drain)}: supervisors kill sooner (Kubernetes after 30s); raise theirs as well, or set 25s",
        ),
        (
            at.kill_grace > at.drain,
            "warning",
            "kill_grace",
            (
                f"kill_grace {show(at.kill_grace)} is longer than drain {show(at.drain)}: a process task that ignores TERM "
                "outlives the drain; set kill_grace lower"
            ),
        ),
        (
            at.durability == "relaxed",
            "warning",
            "durability",
            "durability relaxed: a power cut may lose jobs that were acknowledged; set strict where that matters",
        ),
        (
            at.url.startswith("memory:"),
            "warning",
            "url",
            "memory:// forgets everything when the process ends: for tests only",
        ),
    ]
    return [SettingsProblem(level, about, message) for bad, level, about, message in rules if bad]


def _task_problems(at: Values, task: DeclaredTask) -> list[SettingsProblem]:
    show = duration.show
    options = task.options
    timeout = options.timeout or timedelta(0)
    in_process = options.executor == "process" and options.timeout is not None
    rules = [
        (
            options.executor == "thread" and options.timeout is not None,
            (
                f"timeout {show(timeout)}: a thread cannot be killed, a job over its time keeps its slot until the function "
                'returns; use executor="process" for a hard limit'
            ),
        ),
        (
            in_process and at.kill_grace > timeout,
            (
                f"kill_grace {show(at.kill_grace)} is longer than the timeout {show(timeout)}: the job can run more than twice "
                "its time before its process is killed; set kill_grace lower"
            ),
        ),
        (
            in_process and timeout + at.kill_grace > at.drain,
            (
                f"timeout {show(timeout)} plus kill_grace {show(at.kill_grace)} is longer than drain {show(at.drain)}: a deploy "
                "may interrupt it and it runs again; raise drain or make the task resumable"
            ),
        ),
        (
            options.result_ttl is not None and options.result_ttl > at.keep_done,
            (
                f"result_ttl {show(options.result_ttl or timedelta(0))} is longer than keep_done {show(at.keep_done)}: the job "
                "is pruned with its result before; raise keep_done"
            ),
        ),
        (
            bool(at.queues) and options.queue not in at.queues,
            f"queue {options.queue!r} is not among queues {', '.join(at.queues)}: no worker with these settings runs it",
        ),
    ]
    return [SettingsProblem("warning", f"task {task.name}", message) for bad, message in rules if bad]


def check_trace_url(name: str, value: Any) -> str:
    """The setting `trace_url`, or a ConfigError. A browser follows the link, so that it is an address of the web."""
    if not isinstance(value, str) or not (value == "" or value.startswith(("https://", "http://"))):
        raise ConfigError(f"{name} = {value!r}: an address such as https://tempo.example/trace/{TRACE_ID}")
    if value and TRACE_ID not in value:
        raise ConfigError(f"{name} = {value!r} does not say where the id of a trace goes: write {TRACE_ID} there")
    return value
