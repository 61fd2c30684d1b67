"""The options of a schedule: what `app.schedule(…)`, `POST /v1/schedules` and `headrace schedules add` take, declared once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final, Literal, TypedDict, get_args

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.duration import Duration
from headrace.task.option import LENGTH, Option, OptionKind, Options, named, one_of

Overlap = Literal["allow", "skip", "cancel"]

SHORTEST: Final = timedelta(seconds=1)
MOST_CAUGHT_UP: Final = 1000
_ALL = re.compile(r"all\((\d{1,4})\)", re.ASCII)


def caught_up(text: str) -> int | None:
    """How many late slots to fire at most; None: the last one, if no later one is on time."""
    if text == "last":
        return None
    if text == "none":
        return 0
    match = _ALL.fullmatch(text) if isinstance(text, str) else None
    if match is None or not 1 <= int(match[1]) <= MOST_CAUGHT_UP:
        raise ConfigError(
            f'catch_up = {str(text)[:80]!r}: "none", "last", or "all(24)" with a number from 1 to {MOST_CAUGHT_UP:,}'
        )
    return int(match[1])


def _check_caught_up(text: str) -> str:
    caught_up(text)
    return text


# `model.cron` loads the time zones and the parser of cron rules. Only an app with schedules pays for them.
def _check_zone(name: str) -> str:
    from headrace.model.cron import zone

    zone(name)
    return name


def check_rule(expression: str) -> str:
    """The cron expression in one spelling. Raises InvalidCron or NeverFires."""
    from headrace.model.cron import check_cron

    return check_cron(expression)


def _interval(every: object, name: str) -> timedelta:
    interval = duration.given(every, name=name)
    if interval < SHORTEST:
        raise ConfigError(f"{name} = {duration.show(interval)} is too short: at least {duration.show(SHORTEST)}")
    return interval


_TEXT = OptionKind(problem="invalid_schedule")
_LENGTH = replace(LENGTH, problem="invalid_schedule")


class ScheduleKeywords(TypedDict, total=False):
    """The keyword arguments of `app.schedule(…)` beside `job`. None is the same as leaving an option out."""

    cron: Annotated[
        str | None,
        Option(
            doc='The rule: `"0 3 * * *"`, six fields with seconds first, or `"@daily"`.',
            kind=replace(_TEXT, check=named(check_rule)),
        ),
    ]
    every: Annotated[
        Duration | None,
        Option(
            doc='An interval instead of a rule: `"15m"`, counted from 1970 on.',
            kind=replace(_LENGTH, check=_interval),
        ),
    ]
    tz: Annotated[
        str | None,
        Option(doc="The time zone of `cron`.", kind=replace(_TEXT, check=named(_check_zone)), default="UTC"),
    ]
    overlap: Annotated[
        str | None,
        Option(
            doc="What a slot does while an earlier job is unfinished: `allow`, `skip`, or `cancel` the earlier one.",
            kind=replace(
                _TEXT, check=one_of(*get_args(Overlap)), json_type=Overlap, metavar="|".join(get_args(Overlap))
            ),
            default="allow",
        ),
    ]
    catch_up: Annotated[
        str | None,
        Option(
            doc='The slots that fire after downtime: `none`, `last`, or `"all(24)"` for so many of them.',
            kind=replace(_TEXT, check=named(_check_caught_up)),
            default="last",
        ),
    ]
    jitter: Annotated[
        Duration | None,
        Option(doc="Each job is delayed by up to so long.", kind=_LENGTH, default="none"),
    ]


OPTIONS = Options(ScheduleKeywords)
