"""Arguments of the SQL functions: a NamedTuple for each function, whose fields are the function's parameters.

The statement that calls a function names every parameter (`p_token => $1`). It is made from the fields once, at import.
A call passes the tuple itself, so the names cost nothing per call. A test compares the fields and their types with the
catalogue of a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import Annotated, Any, Final, get_args, get_type_hints
from uuid import UUID

# The types of parameters, each with its name in SQL.
Bool = Annotated[bool, "boolean"]
Bools = Annotated[Sequence[bool | None], "boolean[]"]
Bytes = Annotated[bytes, "bytea"]
Byteses = Annotated[Sequence[bytes | None], "bytea[]"]
Day = Annotated[date, "date"]
Float = Annotated[float, "double precision"]
Floats = Annotated[Sequence[float | None], "double precision[]"]
Int2 = Annotated[int, "smallint"]
Int2s = Annotated[Sequence[int | None], "smallint[]"]
Int4 = Annotated[int, "integer"]
Int4s = Annotated[Sequence[int | None], "integer[]"]
Int8 = Annotated[int, "bigint"]
Int8s = Annotated[Sequence[int], "bigint[]"]
Interval = Annotated[timedelta, "interval"]
Intervals = Annotated[Sequence[timedelta | None], "interval[]"]
Json = Annotated[str, "jsonb"]
Text = Annotated[str, "text"]
Texts = Annotated[Sequence[str | None], "text[]"]
Time = Annotated[datetime, "timestamp with time zone"]
Times = Annotated[Sequence[datetime | None], "timestamp with time zone[]"]
Uuid = Annotated[UUID, "uuid"]
Uuids = Annotated[Sequence[UUID | None], "uuid[]"]

Arguments = type[tuple[Any, ...]]
"""A NamedTuple whose fields are the parameters of a function."""

CALLS: Final[dict[str, Arguments]] = {}
"""Every function that the store calls with named arguments."""


def call(function: str, arguments: Arguments, columns: str = "*") -> str:
    """The statement that calls a function of the schema."""
    return f"select {columns} from {expression(function, arguments)}"


def expression(function: str, arguments: Arguments, *, after: int = 0, more: str = "") -> str:
    """The call of a function. Its arguments follow so many others of the statement; `more` names further ones."""
    CALLS[function] = arguments
    named = [f"{name} => ${number}" for number, name in enumerate(fields(arguments), start=after + 1)]
    return f"headrace.{function}({', '.join([*named, more] if more else named)})"


def fields(arguments: Arguments) -> tuple[str, ...]:
    return tuple(arguments.__annotations__)


@cache
def types(arguments: Arguments) -> tuple[str, ...]:
    """The SQL types of the parameters, for drivers that cannot infer them."""
    hints = get_type_hints(arguments, include_extras=True)
    return tuple(_sql_type(hints[name]) for name in fields(arguments))


def _sql_type(hint: Any) -> str:
    for part in (hint, *get_args(hint)):
        for name in getattr(part, "__metadata__", ()):
            return str(name)
    raise TypeError(f"{hint} has no type in SQL")


def text(value: str) -> str:
    """A text as PostgreSQL can hold it: without NUL and lone surrogates."""
    if value.isascii():
        return value.replace("\0", "\\0") if "\0" in value else value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def column(values: list[Any]) -> list[Any] | None:
    """The values, or None if all of them are None."""
    return values if values.count(None) < len(values) else None


def same(values: list[Any]) -> list[Any]:
    """One value if all of them are equal."""
    return values[:1] if values and values.count(values[0]) == len(values) else values
