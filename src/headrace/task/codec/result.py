"""Results of functions: bytes for storage, and values of the annotated type from bytes."""

from __future__ import annotations

import re
import typing
from typing import Any

import msgspec

from headrace.errors import SerializationError
from headrace.task.codec import problems, types
from headrace.task.codec.hooks import dec_hook, enc_hook

encode = msgspec.msgpack.Encoder(enc_hook=enc_hook).encode
_decode_any = msgspec.msgpack.Decoder().decode

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError)
"""What a decoder raises for bytes that do not fit its type."""
_DOUBLE = 0xCB
# A double whose exponent is all ones. May also match inside text or bytes: then the walk finds nothing.
_NON_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def may_hold_non_finite(data: bytes) -> bool:
    """Whether MessagePack may hold a NaN or an infinity. JSON has none, so they are refused."""
    return _DOUBLE in data and _NON_FINITE.search(data) is not None


class ResultCodec:
    """The results of one function."""

    def __init__(self, hint: Any, name: str, *, of: str = "") -> None:
        """`hint`: the return annotation. `name`: the function's, for errors. `of`: what has values of this type, if it is no function."""
        self.name = name
        self._hint = Any if hint in {typing.NoReturn, typing.Never} else types.check(hint, of or f"{name}() returns")
        self._place = "value" if of else "result"
        self._misfit = f"does not fit {of}" if of else f"is not what {name}() is annotated to return"
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._hint, dec_hook=dec_hook)

    def encode(self, value: Any) -> bytes | None:
        """The function's result as bytes; None for None. Raises SerializationError."""
        if value is None:
            return None
        try:
            data = encode(value)
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; the walk finds where
            problem = problems.find(self._place, value, problems.unstorable)
            raise problem or SerializationError(self._place, f"{type(error).__name__}: {error}") from None
        if may_hold_non_finite(data) and (bad := problems.find(self._place, value, problems.non_finite)):
            raise bad
        return data

    def decode(self, data: bytes | None) -> Any:
        """The function's result. Raises SerializationError if it does not fit the return annotation."""
        if data is None:
            return None
        try:
            return self._decoder.decode(data)
        except MALFORMED as error:
            if self._hint in {None, type(None)}:
                return _decode_any(data)
            raise SerializationError(self._place, f"{self._misfit}: {error}") from None

    def from_json(self, value: Any) -> Any:
        """A value that was JSON, as the annotated type. Raises SerializationError if it does not fit."""
        try:
            return msgspec.json.decode(msgspec.json.encode(value), type=self._hint, dec_hook=dec_hook)
        except MALFORMED as error:
            raise SerializationError(self._place, f"{self._misfit}: {error}") from None
