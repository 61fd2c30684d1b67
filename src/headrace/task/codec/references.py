"""References: arguments that are results of other jobs. A payload holds the id of the job, or of a group, in their place.

In MessagePack a reference is an extension of 16 bytes, in JSON it is `{"$out": id}`. Only the ids in the job's option `inputs`
are references, so that no value of a user is taken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import BadArguments
from headrace.task.codec.hooks import is_dict, is_list

EXTENSION: Final = 1
"""The code of the MessagePack extension."""
_HEAD: Final = bytes((0xD8, EXTENSION))
"""An extension of exactly 16 bytes."""
FIELD: Final = "$out"
"""The only field of the JSON object."""
_NIL: Final = b"\xc0"

_encode = msgspec.msgpack.Encoder().encode
_decode_any = msgspec.msgpack.Decoder().decode


def reference(id: bytes) -> bytes:
    """A reference as it is in MessagePack."""
    return _HEAD + id


def references(ids: Iterable[UUID]) -> bytes:
    """A list of references as it is in MessagePack."""
    return _encode([msgspec.msgpack.Ext(EXTENSION, id.bytes) for id in ids])


def shown(value: msgspec.msgpack.Ext) -> dict[str, str] | None:
    """A reference as JSON has it. None: the extension is no reference."""
    data = bytes(memoryview(value.data))
    return {FIELD: str(UUID(bytes=data))} if value.code == EXTENSION and len(data) == 16 else None


def is_key(argument: bytes) -> bool:
    """Whether a reference is a key of a mapping in this MessagePack, where a result cannot be put."""
    try:
        msgspec.msgpack.decode(argument, ext_hook=lambda _code, _data: list[Any]())
    except msgspec.DecodeError:
        return True  # A list is no key.
    return False


def resolved(payload: bytes, results: Mapping[UUID, bytes | None]) -> bytes:
    """The arguments with these results, which are MessagePack, in place of their references. Raises BadArguments."""
    try:
        return _in_json(payload, results) if payload[:1] in b"{[" else _in_msgpack(payload, results)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise BadArguments(f"the payload is not a set of arguments: {error}") from None


def array(results: list[bytes | None]) -> bytes:
    """The results of a group as one MessagePack list."""
    return _encode([msgspec.Raw(_NIL if result is None else result) for result in results])


def _in_msgpack(payload: bytes, results: Mapping[UUID, bytes | None]) -> bytes:
    def put(code: int, data: memoryview) -> Any:
        if code == EXTENSION and len(data) == 16 and (id := UUID(bytes=bytes(data))) in results:
            result = results[id]
            return msgspec.Raw(_NIL if result is None else result)
        return msgspec.msgpack.Ext(code, bytes(data))

    return _encode(msgspec.msgpack.decode(payload, ext_hook=put))


def _in_json(payload: bytes, results: Mapping[UUID, bytes | None]) -> bytes:
    values = {str(id): None if result is None else _decode_any(result) for id, result in results.items()}
    arguments = msgspec.json.decode(payload)
    return msgspec.json.encode(replaced(arguments, lambda text: values.get(text, {FIELD: text})))


def replaced(value: Any, put: Callable[[str], Any]) -> Any:
    """A JSON value with what `put` gives in place of each `{"$out": text}`."""
    if is_dict(value):
        if len(value) == 1 and isinstance(text := value.get(FIELD), str):
            return put(text)
        return {name: replaced(child, put) for name, child in value.items()}
    if is_list(value):
        return [replaced(child, put) for child in value]
    return value
