"""Finds what is wrong with a value and where. This is slow, and runs only after storing the value has failed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.errors import SerializationError
from headrace.task.codec.hooks import class_of, enc_hook, is_dict, is_list, is_model, is_set

TOO_DEEP = "nested too deeply: store the data elsewhere and pass a reference"

_DEEPEST = 500
_encode = msgspec.msgpack.Encoder(enc_hook=enc_hook).encode


def called(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every argument of the call with its path."""
    for place, value in enumerate(args):
        yield f"args[{place}]", value
    for name, value in kwargs.items():
        yield f"kwargs[{name!r}]", value


def fields(value: Any) -> list[tuple[str, Any]] | None:
    """The attributes of a value that has named fields, else None."""
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if is_model(value):
        names = type(value).model_fields
        return [(name, getattr(value, name, None)) for name in names]
    if is_list(value) and hasattr(value, "_fields"):
        return list(zip(getattr(value, "_fields", ()), value, strict=True))
    return None


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    named = fields(value)
    if named is not None:
        yield from ((f"{path}.{name}", child) for name, child in named)
    elif is_dict(value):
        for key, child in value.items():
            yield f"the key {key!a} of {path}", key
            yield f"{path}[{key!a}]", child
    elif is_list(value):
        yield from ((f"{path}[{place}]", child) for place, child in enumerate(value))
    elif is_set(value):
        yield from ((f"{path}{{{child!a:.40}}}", child) for child in value)


def find(path: str, value: Any, wrong: Callable[[Any], str | None]) -> SerializationError | None:
    """The first innermost value for which `wrong` returns a reason."""
    return _find(path, value, wrong, ())


def _find(
    path: str, value: Any, wrong: Callable[[Any], str | None], above: tuple[int, ...]
) -> SerializationError | None:
    if id(value) in above:
        return SerializationError(path, "the value contains itself: pass a tree, or ids instead of references")
    if len(above) > _DEEPEST:
        short = f"{path[:60]}…"
        return SerializationError(
            short, f"nested more than {_DEEPEST} deep: store the data elsewhere and pass a reference"
        )
    problem = wrong(value)
    if problem is None:
        return None
    inside = (*above, id(value))
    for child_path, child in _children(value, path):
        error = _find(child_path, child, wrong, inside)
        if error is not None:
            return error
    return SerializationError(path, problem) if problem else None


def unstorable(value: Any) -> str | None:
    """Why MessagePack refuses this value; None: it does not."""
    try:
        _encode(value)
    except UnicodeEncodeError:
        return "text with a lone surrogate is not Unicode: replace it, or pass bytes"
    except OverflowError:
        return "a whole number beyond 64 bits cannot be stored: pass it as text"
    except RecursionError:
        return TOO_DEEP
    except Exception as error:  # noqa: BLE001 - whatever a model's own code raises is a reason not to store it
        return str(error) or type(error).__name__
    return None


def non_finite(value: Any) -> str | None:
    """The reason for a NaN or an infinity, `""` for a container that may hold one."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{float(value)} is not a finite number: pass None or text instead"
    return "" if fields(value) is not None or is_dict(value) or is_list(value) or is_set(value) else None


def changed(path: str, before: Any, after: Any) -> SerializationError | None:
    """Which part of a value without a precise annotation would arrive as another type. Tuples may become lists."""
    for step in _pairs(path, before, after):
        error = changed(*step)
        if error is not None:
            return error
    if type(after) not in _PLAIN or _alike(before, after):
        return None
    was = class_of(before).__qualname__
    return SerializationError(
        path,
        f"a {was} would arrive as a {cast('Any', type(after)).__name__} here: annotate the parameter with its type, or pass plain data",
    )


_PLAIN: frozenset[type] = frozenset({str, int, list, dict})


def _alike(before: Any, after: Any) -> bool:
    if is_list(before) and type(after) is list:
        return True
    return type(before) is type(after) or bool(before == after)


def _pairs(path: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """The parts of a value beside the same parts of what arrived."""
    if is_list(before) and type(after) is list:
        both = zip(before, cast("Any", after), strict=False)
        return [(f"{path}[{place}]", one, other) for place, (one, other) in enumerate(both)]
    if is_dict(before) and type(after) is dict:
        items = zip(before.items(), cast("Any", after).items(), strict=False)
        pairs: list[tuple[str, Any, Any]] = []
        for (key, one), (arrived, other) in items:
            pairs += [(f"the key {key!a} of {path}", key, arrived), (f"{path}[{key!a}]", one, other)]
        return pairs
    if type(before) is type(after) and (named := fields(before)) is not None:
        return [(f"{path}.{name}", one, getattr(after, name, None)) for name, one in named]
    return []
