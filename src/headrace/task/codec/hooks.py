"""The types that msgspec does not know: pydantic models, paths, and subclasses of the plain types."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Protocol, TypeGuard, cast, get_origin

from headrace.errors import BadArguments


class HasPlaceholder(BadArguments):
    """The arguments hold `call.out`, the placeholder of a result, in a call that cannot wait for it.

    `args[0]` is the placeholder. Most of these errors are caught, so the text is made only when it is read.
    """

    def __str__(self) -> str:
        return f"{self.args[0]!r} is not known yet: pass it to task.job(…) and enqueue that with app.enqueue(…)"


class Model(Protocol):
    """The part of a pydantic model that is used here. This module never imports pydantic."""

    model_fields: Mapping[str, Any]

    @classmethod
    def model_validate(cls, obj: Any, **flags: bool) -> Any: ...

    def model_dump(self, **flags: Any) -> dict[str, Any]: ...


def is_dict(value: Any) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def is_set(value: Any) -> TypeGuard[set[Any] | frozenset[Any]]:
    return isinstance(value, set | frozenset)


def class_of(value: object) -> type[object]:
    return type(value)


def is_placeholder(cls: type[object]) -> bool:
    """Whether this is the class of `call.out`, which this package does not import."""
    return hasattr(cls, "headrace_placeholder")


def _base_model() -> type[Any] | None:
    # If there is a model, pydantic is imported already.
    pydantic = sys.modules.get("pydantic")
    return getattr(pydantic, "BaseModel", None)


def is_model(value: Any) -> TypeGuard[Model]:
    base = _base_model()
    return base is not None and isinstance(value, base)


def is_model_class(cls: object) -> bool:
    base = _base_model()
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def _knows_by_name() -> bool:
    version = str(getattr(sys.modules["pydantic"], "VERSION", "2.0"))
    return tuple(int(part) for part in version.split(".")[:2]) >= (2, 11)


def plain(cls: type[Any]) -> bool:
    """Whether a decoded list or dict is already an instance of this class, which msgspec does not know."""
    try:
        return issubclass(list, cls) or issubclass(dict, cls)
    except TypeError:
        return False


def supported(cls: type[Any]) -> bool:
    """Whether `dec_hook` can make one of these."""
    return is_model_class(cls) or plain(cls) or issubclass(cls, PurePath)


_BASES: dict[type, Callable[[Any], Any]] = {str: str, int: int, float: float, bytes: bytes}
"""Subclasses of these, such as a template engine's safe text, are stored as the plain type."""


def enc_hook(value: Any) -> Any:
    """A value that msgspec can store in place of one that it cannot."""
    # Each link of a chain comes here, and the checks below cost more than the rest of making it.
    cls = class_of(value)
    if is_placeholder(cls):
        raise HasPlaceholder(value)
    if is_model(value):
        # In Python mode bytes, dates and decimals reach msgspec unchanged. Field names replace aliases if pydantic can
        # read them back.
        return value.model_dump(mode="python", round_trip=True, by_alias=not _knows_by_name())
    for kind, make in _BASES.items():
        if isinstance(value, kind):
            return make(value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "get_secret_value"):
        raise TypeError(f"a {cls.__name__} hides its value: pass the value itself and name the field in redact=")
    if cls.__module__.partition(".")[0] in {"pydantic", "pydantic_core"}:
        return str(value)
    raise TypeError(f"{_article(cls)} cannot be stored: pass plain data, a dataclass, a msgspec Struct or an id")


def _article(cls: type[Any]) -> str:
    name = cls.__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def dec_hook(kind: Any, value: Any) -> Any:
    """The annotated type from a stored value. msgspec reports an exception with its path."""
    cls = get_origin(kind) or kind
    if is_model_class(cls):
        model = cast("type[Model]", kind)
        if isinstance(value, cls):
            return value
        flags = {"by_alias": True, "by_name": True} if _knows_by_name() else {}
        try:
            return model.model_validate(value, strict=False, **flags)
        except ValueError as error:
            raise ValueError(_without_values(error)) from None
    if issubclass(cls, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `{cls.__name__}`, got `{type(value).__name__}`")
        return cls(value)
    return value


def _without_values(error: ValueError) -> str:
    """Pydantic's message without the values it quotes, which may be secret."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(step) for step in first["loc"])
    return f"{path}: {first['msg']}" if path else str(first["msg"])
