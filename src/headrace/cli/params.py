"""Types of command line arguments: names, durations, times, ids and JSON. Bad values are refused with a reason."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from headrace.errors import ConfigError
from headrace.model import duration, lane
from headrace.model.size import read_size
from headrace.policy import reserve
from headrace.task.option import Option, read_time

if TYPE_CHECKING:
    Base = click.ParamType[Any]
else:
    Base = click.ParamType  # generic only in newer versions


Command = TypeVar("Command", bound=Callable[..., object])


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


def declared(options: Mapping[str, Option], *, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """A flag for each of these options that a command line can carry."""

    def decorate(command: Command) -> Command:
        for option in reversed(list(options.values())):
            if not option.code_only and option.name not in without:
                kind = Checked(option.kind.metavar, option.from_text)
                doc = f"{option.doc} Default: {option.default}." if option.default else option.doc
                command = click.option(f"--{option.name.replace('_', '-')}", type=kind, help=doc)(command)
        return command

    return decorate


def _queues(text: str) -> tuple[str, ...]:
    return tuple(lane.check_queue(name.strip()) for name in text.split(",") if name.strip())


def _reserve(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        reserve.parse_reserve(part)
    return parts


def past(text: str) -> datetime:
    """A time, or a duration read as "so long ago"."""
    if "T" in text or "-" in text:
        return read_time(text)
    return datetime.now(UTC) - duration.parse(text)


def _step(text: str) -> timedelta | str:
    """The length of a step; `all`: one step of the whole time."""
    return "all" if text == "all" else duration.parse(text)


QUEUE = Checked("queue", lane.check_queue)
RESERVE = Checked("band=slots,…", _reserve)
QUEUES = Checked("queue,…", _queues)
TASK = Checked("task", lane.check_task_name)
TENANT = Checked("tenant", lane.check_tenant)
DURATION = Checked("duration", duration.parse)
SIZE = Checked("size", lambda text: read_size("size", text))
MOMENT = Checked("time", read_time)
PAST = Checked("time or age", past)
STEP = Checked("duration or all", _step)


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
