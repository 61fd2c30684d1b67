"""The options of a limit: what `Limit(…)`, `app.limits.set(…)`, `PUT /v1/limits/{name}` and `headrace limits set` take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, TypedDict, cast

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model import rate as rates
from headrace.model.duration import Duration
from headrace.model.lane import MAX_UNITS, check_queue
from headrace.task.option import NUMBER, Option, OptionKind, Options, checked

COOL_DOWN: Final = timedelta(seconds=5)


def check_name(name: str) -> str:
    """The name of a limit, or a ConfigError."""
    try:
        return check_queue(name)
    except ConfigError as error:
        raise ConfigError(str(error).replace("queue name", "limit name")) from None


def units(value: Any, name: str) -> int:
    """A whole number of units, or a ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_UNITS:
        raise ConfigError(f"{name} = {value!r}: a whole number from 1 to {MAX_UNITS:,}")
    return value


def _key_of(value: Any, name: str) -> Callable[..., str | int | None]:
    if not callable(value):
        raise ConfigError(f"{name} = {value!r}: a function of the task's arguments, e.g. lambda order, shop: shop")
    return cast("Callable[..., str | int | None]", value)


def _cost(value: Any, name: str) -> Any:
    return value if callable(value) else units(value, name)


def _cool_down(value: Any, name: str) -> timedelta:
    if not (length := duration.given(value, name=name)):
        raise ConfigError(f"{name} = {value!r}: must be more than 0")
    return length


_UNITS = replace(NUMBER, check=units, problem="invalid_limit")


class FigureKeywords(TypedDict, total=False):
    """The figures of a limit, which an operator may change. None is the same as leaving an option out."""

    rate: Annotated[
        str | None,
        Option(
            doc='The units that start per time: `"50/s"`, `"90/m"`, `"1000/h"`, `"5000/d"`.',
            kind=OptionKind(
                check=lambda value, name: rates.parse(value, name=name), metavar="rate", problem="invalid_limit"
            ),
            default="any",
        ),
    ]
    burst: Annotated[
        int | None,
        Option(doc="The units that may start at once; needs `rate`.", kind=_UNITS, default="one second's worth"),
    ]
    concurrency: Annotated[int | None, Option(doc="The units that run at once.", kind=_UNITS, default="any")]


class LimitKeywords(FigureKeywords, total=False):
    """The keyword arguments of `Limit(…)`. None is the same as leaving an option out."""

    key: Annotated[
        Callable[..., str | int | None] | None,
        Option(
            doc="A function of the task's arguments: each key that it returns is limited on its own; None: no limit.",
            kind=OptionKind(check=_key_of),
            default="one limit for all jobs",
            code_only=True,
        ),
    ]
    cost: Annotated[
        int | Callable[..., int] | None,
        Option(
            doc="The units that a job needs, or a function of the task's arguments that returns them.",
            kind=OptionKind(check=_cost),
            default="1",
            code_only=True,
        ),
    ]
    breaker: Annotated[
        int | None,
        Option(
            doc="The number of failures in a row that close the limit.",
            kind=OptionKind(check=units),
            default="none",
            code_only=True,
        ),
    ]
    cool_down: Annotated[
        Duration | None,
        Option(
            doc="How long the breaker keeps the limit closed. Then one job at a time runs until one succeeds.",
            kind=OptionKind(check=_cool_down),
            default="5s",
            code_only=True,
        ),
    ]


FIGURE_OPTIONS = Options(FigureKeywords)
LIMIT_OPTIONS = Options(LimitKeywords)


def checked_for(name: str, options: Options, given: Mapping[str, Any]) -> dict[str, Any]:
    """Checked options of the limit of this name; a ConfigError names it."""
    try:
        return checked(options, given, "Limit")
    except ConfigError as error:
        raise ConfigError(f"limit {name!r}: {error}") from None
