"""Payloads for display: JSON values, with the values of secret fields masked."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.errors import BadArguments
from headrace.task.codec.hooks import enc_hook, is_dict, is_list, is_model, is_set
from headrace.task.codec.problems import fields

MASK = "•••"
_DEEPEST = 64

Arguments = tuple[Sequence[Any], dict[str, Any]]


class _MaskedCall(msgspec.Struct, forbid_unknown_fields=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


_call_decoder = msgspec.msgpack.Decoder(tuple[list[Any], dict[str, Any]])
_json_decoder = msgspec.json.Decoder(_MaskedCall)
_json_args_decoder = msgspec.json.Decoder(list[Any])


def loose(payload: bytes) -> Arguments:
    """The arguments without a signature. Raises BadArguments."""
    try:
        match payload[:1]:
            case b"{":
                call = _json_decoder.decode(payload)
                return call.args, call.kwargs
            case b"[":
                return _json_args_decoder.decode(payload), {}
            case _:
                return _call_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BadArguments(f"the payload is not a set of arguments: {error}") from None


def show(payload: bytes, redact: Iterable[str] = (), names: Sequence[str] = ()) -> dict[str, Any]:
    """`{"args": […], "kwargs": {…}}` of a task that is not known here. `names` are those of the parameters."""
    try:
        return masked(loose(payload), redact, names)
    except BadArguments:
        # Unreadable bytes may hold a secret anywhere, so only their number is shown.
        return {"args": [], "kwargs": {}, "problem": f"{len(payload)} bytes that are not arguments"}


def secrets(payload: bytes, redact: Iterable[str], names: Sequence[str]) -> list[str]:
    """The values that `show` masks, as text: they are removed from the failures of a task that is not known here."""
    try:
        return hidden(loose(payload), redact, names)
    except BadArguments:
        return []


def masked(arguments: Arguments, redact: Iterable[str], names: Sequence[str]) -> dict[str, Any]:
    """The arguments as JSON values, with every field named in `redact` masked at any depth."""
    walk = _Walk(redact)
    args, kwargs = arguments
    return {
        "args": [walk.field(names[place] if place < len(names) else "", value, 0) for place, value in enumerate(args)],
        "kwargs": {name: walk.field(name, value, 0) for name, value in kwargs.items()},
    }


def hidden(arguments: Arguments, redact: Iterable[str], names: Sequence[str]) -> list[str]:
    """The masked values as text, as they might appear in a message or a traceback."""
    texts: set[str] = set()

    def note(value: Any) -> None:
        text = value if isinstance(value, str) else str(value)
        if text:
            texts.update((text, repr(text)[1:-1]))

    walk = _Walk(redact, note)
    args, kwargs = arguments
    for place, value in enumerate(args):
        walk.field(names[place] if place < len(names) else "", value, 0)
    for name, value in kwargs.items():
        walk.field(name, value, 0)
    return sorted(texts, key=len, reverse=True)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Text without the secrets, longest first so that no tail of one is left."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def masked_result(value: Any, redact: Iterable[str], secrets: Iterable[str]) -> Any:
    """What a task returned, with every field named in `redact` masked, and without the secrets of its arguments."""
    return _scrubbed(_Walk(redact).value(value, 0), frozenset(secrets))


def _scrubbed(value: Any, secrets: frozenset[str]) -> Any:
    if isinstance(value, str):
        return scrub(value, secrets)
    if is_dict(value):
        return {scrub(str(name), secrets): _scrubbed(child, secrets) for name, child in value.items()}
    if is_list(value):
        return [_scrubbed(child, secrets) for child in value]
    return MASK if not isinstance(value, bool) and str(value) in secrets else value


class _Walk:
    def __init__(self, redact: Iterable[str], note: Callable[[Any], None] | None = None) -> None:
        self._redact = {name.casefold() for name in redact}
        self._note = note

    def field(self, name: object, value: Any, depth: int, *aliases: str) -> Any:
        if any(str(spelling).casefold() in self._redact for spelling in (name, *aliases)):
            if self._note is not None:
                self._leaves(value, depth)
            return MASK
        return self.value(value, depth)

    def value(self, value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            return "…"
        below = depth + 1
        named = _named(value)
        if named is not None:
            return {name: self.field(name, child, below, *aliases) for name, child, aliases in named}
        if is_dict(value):
            return {str(key): self.field(key, child, below) for key, child in value.items()}
        if is_list(value) or is_set(value):
            return [self.value(child, below) for child in value]
        return _leaf(value)

    def _leaves(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            return
        named = _named(value)
        if named is not None:
            for _, child, _ in named:
                self._leaves(child, depth + 1)
        elif is_dict(value):
            for child in value.values():
                self._leaves(child, depth + 1)
        elif is_list(value) or is_set(value):
            for child in value:
                self._leaves(child, depth + 1)
        elif value is not None and not isinstance(value, bool) and self._note is not None:
            self._note(value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else _leaf(value))


def _named(value: Any) -> list[tuple[str, Any, tuple[str, ...]]] | None:
    """Fields with their values and their other names."""
    children = fields(value)
    if children is None:
        return None
    if isinstance(value, msgspec.Struct):
        return [
            (name, child, (alias,))
            for (name, child), alias in zip(children, value.__struct_encode_fields__, strict=True)
        ]
    if is_model(value):
        known = type(value).model_fields
        return [(name, child, (str(known[name].alias or name),)) for name, child in children]
    return [(name, child, ()) for name, child in children]


def _leaf(value: Any) -> Any:
    match value:
        case bool() | None | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case msgspec.msgpack.Ext():
            from headrace.task.codec.references import shown  # imported here, because few jobs have inputs

            return shown(value) or f"<extension {value.code}, {memoryview(value.data).nbytes} bytes>"
        case _:
            return msgspec.to_builtins(value, enc_hook=_text_hook)


def _text_hook(value: Any) -> Any:
    try:
        return enc_hook(value)
    except TypeError:
        return f"<{type(value).__qualname__}>"
