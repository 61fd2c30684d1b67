"""What an option is: its name, its doc, and how it is read from Python, from JSON and from the command line.

The keyword arguments of a call are declared once, as a TypedDict whose fields carry an `Option`. Type checkers read the
types of the fields. The call itself, the bodies of HTTP requests, the flags of commands and the tables of the reference
read the options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, ClassVar, Protocol, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model import duration

Parser = Callable[[Any, str], Any]
"""(what was given, the option's name) → the value; a ConfigError says what to write."""


class Checks(Protocol):
    """The checks that need the settings of an app."""

    def check_webhook(self, url: str) -> str: ...


def _as_given(value: Any, _: str = "") -> Any:
    return value


class OptionKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the values of an option are written at each entrance."""

    check: Parser = _as_given
    """From a Python value to the value that the code uses."""
    text: Callable[[str], Any] = _as_given
    """From a text of the command line to a Python value."""
    json: Parser = _as_given
    """From a JSON value to a Python value; None: as if it was left out."""
    json_type: Any = str
    """What msgspec accepts as the JSON value, and shows in the OpenAPI document."""
    metavar: str = "text"
    """What `--help` shows in place of a value."""
    problem: str = "invalid_value"
    """The code of the answer to a wrong JSON value."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option, declared once."""

    name: str = ""
    """The name of the field that carries it."""
    doc: str
    """One line for the reference, for `--help` and for the OpenAPI document."""
    kind: OptionKind = OptionKind()
    default: str = ""
    """What holds when it is left out, as the reference shows it; empty: nothing."""
    code_only: bool = False
    """It has no place in JSON and on the command line."""
    stored: bool = False
    """The job carries it to the worker, as the field of `JobOptions` of the same name."""
    stored_check: Parser | None = None
    """Checks the stored form of a job that another program has made."""
    app_check: Callable[[Checks, Any], Any] | None = None

    def check(self, value: Any, checks: Checks | None = None) -> Any:
        """A Python value as the code uses it, or a ConfigError."""
        checked_value = self.kind.check(value, self.name)
        return checked_value if self.app_check is None or checks is None else self.app_check(checks, checked_value)

    def from_text(self, text: str) -> Any:
        """The value of a flag as Python code would give it, or a ConfigError."""
        return self._tried(self.kind.text(text))

    def from_json(self, value: Any, checks: Checks | None = None) -> Any:
        """The value of a field of a body as Python code would give it, or a ConfigError; None: it was left out."""
        return self._tried(self.kind.json(value, self.name), checks)

    def _tried(self, value: Any, checks: Checks | None = None) -> Any:
        if value is not None:
            self.check(value, checks)
        return value


class Options(Mapping[str, Option]):
    """The options of a TypedDict whose fields are `Annotated[type, Option(…)]`, by name.

    The first call that gives an option reads the fields. A program whose tasks have no options does without.
    """

    def __init__(self, keywords: type) -> None:
        self._keywords = keywords

    @cached_property
    def by_name(self) -> dict[str, Option]:
        """The same as a dict, which is faster to read."""
        options: dict[str, Option] = {}
        for name, hint in get_type_hints(self._keywords, include_extras=True).items():
            carried = (
                [option for option in get_args(hint)[1:] if isinstance(option, Option)] if get_origin(hint) else []
            )
            if len(carried) != 1:
                raise TypeError(f"{self._keywords.__name__}.{name} carries {len(carried)} options instead of one")
            options[name] = replace(carried[0], name=name)
        return options

    def __getitem__(self, name: str) -> Option:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)


def checked(options: Options, given: Mapping[str, Any], call: str, checks: Checks | None = None) -> dict[str, Any]:
    """What was given, without what is None, each value as the code uses it; a ConfigError, or a TypeError as of any call."""
    values: dict[str, Any] = {}
    if not given:
        return values
    known = options.by_name
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
        if value is not None:
            values[name] = option.check(value, checks)
    return values


class OptionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request that carries options."""

    option_names: ClassVar[tuple[str, ...]] = ()
    field_docs: ClassVar[Mapping[str, str]] = {}

    def given(self) -> dict[str, Any]:
        """The options that are there, by name, as JSON has them."""
        return {name: value for name in self.option_names if (value := getattr(self, name)) is not None}


def body(base: type[OptionBody], options: Mapping[str, Option], name: str) -> Any:
    """The type of a body: `base` with a field for each option that JSON can carry. Each may be left out."""
    there = [option for option in options.values() if not option.code_only]
    return msgspec.defstruct(
        name,
        [(option.name, option.kind.json_type | None, None) for option in there],
        bases=(base,),
        namespace={
            "__doc__": base.__doc__,
            "option_names": tuple(option.name for option in there),
            "field_docs": {option.name: option.doc for option in there},
        },
        module=base.__module__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


# ── parsers ──────────────────────────────────────────────────────────────────


def positive(value: duration.Duration | None, name: str) -> timedelta | None:
    """A duration of more than nothing; None: it was left out."""
    if value is None:
        return None
    if not (length := duration.given(value, name=name)):
        raise ConfigError(f"{name} = {value!r}: must be more than 0; leave it out for none")
    return length


def in_seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def check_time(value: object, name: str) -> datetime:
    """A time with its zone."""
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} = {value!r}: an aware datetime, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
    return duration.check_aware(value, name=name)


def read_time(text: str) -> datetime:
    """A time as it is written on a command line."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time: write 2026-01-31T08:00:00Z or 2026-01-31T08:00+01:00") from None
    if moment.tzinfo is None:
        raise ConfigError(f"{text!r} has no time zone: add Z or an offset such as +01:00")
    return moment


def _check_due(value: object, name: str) -> datetime:
    return duration.check_near(check_time(value, name), name=name)


def _check_end(value: Any, name: str) -> timedelta | datetime | None:
    return check_time(value, name) if isinstance(value, datetime) else positive(value, name)


def _end_in_text(text: str) -> object:
    return read_time(text) if "T" in text or "-" in text[1:] else text


class _NoTime(ConfigError):
    code = "invalid_time"


_Time = Annotated[datetime, Meta(tz=True)]


def _json_time(text: Any) -> datetime | None:
    """A time that a store can hold and that is not too far ahead; None: it is none."""
    try:
        moment = msgspec.convert(text, _Time)
    except msgspec.ValidationError:
        return None
    return moment if moment.year >= 1970 and moment - datetime.now(UTC) <= duration.LONGEST else None


def _due_in_json(text: str, name: str) -> datetime | None:
    if text == "now":
        return None
    if (moment := _json_time(text)) is None:
        raise ConfigError(
            f"{name}: now, or a time such as 2030-01-31T08:00:00Z, from 1970 to {duration.LONGEST.days} days ahead"
        )
    return moment


def _end_in_json(text: str, name: str) -> object:
    if not text[:1].isdigit() or "-" not in text:
        return text
    if (moment := _json_time(text)) is None:
        raise _NoTime(f"{name}: a duration such as 30s or a time such as 2030-01-31T08:00:00Z")
    return moment


def read_number(text: str) -> int:
    """A whole number as it is written on a command line."""
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a whole number") from None


def check_flag(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: True or False")
    return value


def one_of(*known: str) -> Parser:
    """A check for one of these words."""

    def check(value: Any, name: str) -> str:
        if value not in known:
            raise ConfigError(f"{name} = {value!r}: one of {', '.join(known)}")
        return str(value)

    return check


def at_least_one(otherwise: str = "", *, most: int | None = None) -> Parser:
    """A check for a whole number from 1 on; `otherwise` ends the message."""

    def check(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
            raise ConfigError(f"{name} = {value!r}: a whole number from 1 on{otherwise}")
        return value

    return check


def named(check: Callable[[Any], Any]) -> Parser:
    """A check whose messages do not need the name of the option."""
    return lambda value, _: check(value)


# ── kinds ────────────────────────────────────────────────────────────────────

LENGTH = OptionKind(
    check=lambda value, name: duration.given(value, name=name), metavar="duration", problem="invalid_duration"
)
"""A length of time; zero is one, too."""
SPAN = replace(LENGTH, check=positive)
"""A length of time that is more than zero."""
DUE = OptionKind(
    check=_check_due,
    text=read_time,
    json=_due_in_json,
    json_type=Annotated[str, Meta(extra_json_schema={"anyOf": [{"format": "date-time"}, {"const": "now"}]})],
    metavar="time",
    problem="invalid_run_at",
)
"""A time that is not too far ahead."""
END = OptionKind(
    check=_check_end,
    text=_end_in_text,
    json=_end_in_json,
    metavar="duration or time",
    problem="invalid_duration",
)
"""A length of time from the enqueue on, or a time."""
NUMBER = OptionKind(text=read_number, json_type=int, metavar="number")
"""A whole number."""
