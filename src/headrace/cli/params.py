"""Types of command line arguments: names, durations, times, ids and JSON. Bad values are refused with a reason."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from headrace.errors import ConfigError
from headrace.model import duration, lane
from headrace.model.job import parse_id
from headrace.policy import reserve

if TYPE_CHECKING:
    Base = click.ParamType[Any]
else:
    Base = click.ParamType  # generic only in newer versions


class Checked(Base):
    """A text that one of headrace's checks must accept."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._check(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _queues(text: str) -> tuple[str, ...]:
    return tuple(lane.check_queue(name.strip()) for name in text.split(",") if name.strip())


def _reserve(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in found:
        reserve.parse_reserve(each)
    return found


def moment_or_duration(text: str) -> datetime | timedelta:
    """A time, or a duration."""
    return moment(text) if "T" in text or "-" in text[1:] else duration.parse(text)


def _priority(text: str) -> int:
    try:
        return lane.check_priority(int(text))
    except ValueError:
        raise ConfigError(f"{text!r} is not a whole number") from None


def moment(text: str) -> datetime:
    """An aware datetime from ISO 8601 with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time: write 2026-01-31T08:00:00Z or 2026-01-31T08:00+01:00") from None
    if found.tzinfo is None:
        raise ConfigError(f"{text!r} has no time zone: add Z or an offset such as +01:00")
    return found


def past(text: str) -> datetime:
    """A time, or a duration read as "so long ago"."""
    if "T" in text or "-" in text:
        return moment(text)
    return datetime.now(UTC) - duration.parse(text)


QUEUE = Checked("queue", lane.check_queue)
RESERVE = Checked("band=slots,…", _reserve)
QUEUES = Checked("queue,…", _queues)
TASK = Checked("task", lane.check_task_name)
TENANT = Checked("tenant", lane.check_tenant)
PRIORITY = Checked("number", _priority)
KEY = Checked("key", lane.check_key)
JOB_ID = Checked("id", parse_id)
DURATION = Checked("duration", duration.parse)
WITHIN = Checked("duration or time", moment_or_duration)
MOMENT = Checked("time", moment)
PAST = Checked("time or age", past)


def _storable(value: object, path: str) -> None:
    """Refuse values that Python's reader accepts and JSON does not have, and name their place."""
    match value:
        case float() if not math.isfinite(value):
            raise _usage(f"{path} is {value}: only finite numbers can be stored")
        case str():
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise _usage(f"{path} contains half a surrogate pair, which is not text")
        case list():
            for place, item in enumerate(cast("list[object]", value)):
                _storable(item, f"{path}[{place}]")
        case dict():
            for key, item in cast("dict[str, object]", value).items():
                _storable(key, f"a key of {path}")
                _storable(item, f"{path}.{key}")
        case _:
            pass


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text. Raises a usage error that names the argument."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        with contextlib.suppress(ValueError, RecursionError):
            _storable(json.loads(text), what)
        hint = "" if text[:1] in '"[{-0123456789tfn' else " (a text needs its quotes: '\"like this\"')"
        raise _usage(f"{what} is not JSON: {error}{hint}") from None


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context(silent=True))


def seconds(value: timedelta | None) -> float | None:
    """A duration as JSON shows it."""
    return None if value is None else round(value.total_seconds(), 3)
