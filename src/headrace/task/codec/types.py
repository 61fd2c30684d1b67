"""Annotations: which types can be stored and read back, and which are too general to be sure."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect as shape

from headrace.errors import ConfigError
from headrace.task.codec.hooks import dec_hook, plain, supported


def check(hint: Any, what: str) -> Any:
    """The annotation for msgspec, or a ConfigError that says what to change."""
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
    """Whether a value may change its type in storage because the annotation does not name the type."""
    return any(
        isinstance(part, shape.AnyType) or (isinstance(part, shape.CustomType) and plain(part.cls))
        for part in _parts(shape.type_info(hint))
    )


def call_type(hints: tuple[Any, ...]) -> Any:
    """The type of a payload with exactly these positional arguments and no named ones."""
    builtin = cast("Any", tuple)
    return builtin[builtin[hints], dict[str, Any]]


def unnamed(hint: Any, names: Collection[str]) -> bool:
    """Whether its values hold one of these fields (casefolded) in a type that is stored without field names."""
    return any(
        (isinstance(part, shape.NamedTupleType) or (isinstance(part, shape.StructType) and part.array_like))
        and any(field.name.casefold() in names for field in part.fields)
        for part in _parts(shape.type_info(hint))
    )


def aliases(hint: Any, names: Collection[str]) -> Iterator[str]:
    """The stored names of these fields (casefolded), where they differ."""
    for part in _parts(shape.type_info(hint)):
        if isinstance(part, shape.StructType):
            yield from (field.encode_name for field in part.fields if field.name.casefold() in names)
        elif isinstance(part, shape.CustomType):
            known: Mapping[str, Any] = getattr(part.cls, "model_fields", {})
            yield from (str(field.alias or name) for name, field in known.items() if name.casefold() in names)


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


def hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """The annotations of a task's function, or a ConfigError."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{name}(): the annotation {error.name!r} cannot be resolved: headrace reads annotations at run time, "
            "so import that name at module level and outside `if TYPE_CHECKING`"
        ) from None
    except TypeError as error:
        if not hasattr(function, "__annotations__"):
            return {}  # A callable object or a partial may have no annotations.
        raise ConfigError(f"{name}(): its annotations cannot be read: {error}") from None
