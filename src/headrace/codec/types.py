"""Annotations: which of them can be stored and read back, and which say too little to be sure."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from msgspec import inspect as shape

from headrace.codec.hooks import dec_hook, plain, supported
from headrace.errors import ConfigError


def check(hint: Any, what: str) -> Any:
    """The annotation as msgspec takes it, or a ConfigError that says what to change."""
    if hint is object or isinstance(hint, typing.ParamSpecArgs | typing.ParamSpecKwargs):
        return Any
    if typing.get_origin(hint) is typing.Unpack:
        return Any
    try:
        info = shape.type_info(hint)
        msgspec.msgpack.Decoder(hint, dec_hook=dec_hook)
    except (TypeError, NameError) as error:
        raise ConfigError(f"{what}: {_first_line(error)}. Use one type, a tagged Struct union or Any") from None
    for part in _parts(info):
        if isinstance(part, shape.CustomType) and part.cls is not object and not supported(part.cls):
            raise ConfigError(
                f"{what}: {part.cls.__qualname__} cannot be stored; use plain data, a dataclass, a msgspec Struct, "
                "a pydantic model, or the id of the thing"
            )
    return hint


def vague(hint: Any) -> bool:
    """Whether a value may change its type on the way because the annotation does not name it."""
    return any(
        isinstance(part, shape.AnyType) or (isinstance(part, shape.CustomType) and plain(part.cls))
        for part in _parts(shape.type_info(hint))
    )


def call_type(each: tuple[Any, ...]) -> Any:
    """The type of a payload with exactly these positional arguments and no named ones."""
    builtin = cast("Any", tuple)
    return builtin[builtin[each], dict[str, Any]]


def _parts(info: object) -> Iterator[object]:
    """Every type inside a type; msgspec shares the objects of recursive ones."""
    seen: set[int] = set()
    open_ = [info]
    while open_:
        part = open_.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple | list):
            open_.extend(cast("tuple[object, ...]", part))
        elif isinstance(part, shape.Type | shape.Field):
            yield part
            open_.extend(getattr(part, name) for name in part.__struct_fields__ if name not in {"default", "cls"})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
