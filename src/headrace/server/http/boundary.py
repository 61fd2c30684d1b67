"""The boundary: which requests are accepted. Everything here is checked before other code sees the request."""

from __future__ import annotations

import asyncio
import json
import math
import re
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope

from headrace.server.config import ServerSettings
from headrace.server.http.problems import Problem
from headrace.task.codec.hooks import is_dict, is_list

_MAX_PATH = 16 * 1024
CLOSE = {"Connection": "close"}


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that name."""
    for key, value in scope["headers"]:
        if key == name:
            return cast("bytes", value)
    return None


# ── before a byte of the body is read ────────────────────────────────────────


class Head:
    """What the headers say of the body."""

    __slots__ = ("encoding", "idempotency_key", "length", "media", "read", "request_id", "traceparent", "transfer")

    def __init__(self, scope: Scope, settings: ServerSettings) -> None:
        headers = scope["headers"]
        if len(headers) > settings.max_headers:
            raise too_many_headers()
        if len(scope["path"]) > _MAX_PATH:
            raise Problem(414, "uri_too_long", f"a path may have {_MAX_PATH:,} characters", headers=CLOSE)
        self.media: bytes | None = None
        self.encoding: bytes | None = None
        self.length: bytes | None = None
        self.transfer = False
        self.request_id: bytes | None = None
        self.idempotency_key: bytes | None = None
        self.traceparent: bytes | None = None
        self.read = False
        """Whether the body has been read."""
        size = hosts = 0
        for name, value in headers:
            size += len(name) + len(value)
            match name:
                case b"host":
                    hosts += 1
                case b"content-type":
                    self.media = value
                case b"content-length":
                    self.length = value
                case b"content-encoding":
                    self.encoding = value
                case b"transfer-encoding":
                    self.transfer = True
                case b"x-request-id":
                    self.request_id = value
                case b"idempotency-key":
                    self.idempotency_key = value
                case b"traceparent":
                    self.traceparent = value
                case _:
                    pass
        if size > settings.max_header_bytes:
            raise too_many_headers()
        if hosts != 1 and (hosts or scope.get("http_version") == "1.1"):
            # A proxy in front may have used another one of them (RFC 9112, 3.2).
            raise Problem(400, "malformed_request", "a request has one Host header", headers=CLOSE)

    @property
    def empty(self) -> bool:
        """There is no body."""
        return not self.transfer and self.length in {None, b"0"}

    @property
    def much_unread(self) -> bool:
        """More of the body may follow than the server waits for."""
        return not self.read and (self.transfer or (self.length is not None and len(self.length) > 4))

    def check(self, settings: ServerSettings) -> None:
        """Refuse a body by what the headers say of it."""
        if self.encoding is not None and self.encoding.strip().lower() != b"identity":
            raise Problem(415, "content_encoding_not_allowed", "send the body as it is, not compressed", headers=CLOSE)
        if self.media != b"application/json" and not _is_json(self.media):
            raise Problem(
                415,
                "content_type_not_allowed",
                "send JSON with the header Content-Type: application/json",
                headers=CLOSE,
            )
        if self.length is not None and (not self.length.isdigit() or int(self.length[:20]) > settings.max_body):
            raise body_too_large(settings)


def _is_json(media: bytes | None) -> bool:
    if media is None:
        return False
    kind, _, parameters = media.partition(b";")
    if kind.strip().lower() != b"application/json":
        return False
    charset = parameters.strip().lower()
    return charset in {b"", b"charset=utf-8", b'charset="utf-8"'}


def too_many_headers() -> Problem:
    return Problem(431, "headers_too_large", "the request has too many or too long headers", headers=CLOSE)


def body_too_large(settings: ServerSettings) -> Problem:
    return Problem(
        413, "body_too_large", f"a body may have {settings.max_body:,} bytes: send less at once", headers=CLOSE
    )


# ── the body ─────────────────────────────────────────────────────────────────


class Gone(Exception):
    """The client left before it had sent everything, or while it waited. No answer is needed."""


async def read(receive: Receive, settings: ServerSettings) -> bytes:
    """The whole body; stops reading when it is too large or takes too long."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if len(body) > settings.max_body:
        raise body_too_large(settings)
    if not message.get("more_body", False):
        return body
    return await _rest(receive, body, settings)


async def _rest(receive: Receive, first: bytes, settings: ServerSettings) -> bytes:
    parts, size = [first], len(first)
    try:
        async with asyncio.timeout(settings.read_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                part: bytes = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > settings.max_body:
                    raise body_too_large(settings)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Problem(
            408, "request_timeout", f"the body did not arrive within {settings.read_timeout:g} s", headers=CLOSE
        ) from None


# ── JSON ─────────────────────────────────────────────────────────────────────

# A string without an end matches up to the end of the body, so that one pass is enough for any input.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_NAMES = bytes(set(range(256)) - set(b"[]{}:"))
_AFTER_TEXT = (b'" ', b'"\t', b'"\r', b'"\n')
_APART = re.compile(rb'"[ \t\r\n]++:')
LONGEST_NUMBER = 4300
"""The most digits that Python reads."""
_LONG = re.compile(rb"(?<![0-9])[0-9]{%d}" % (LONGEST_NUMBER + 1))
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def _without_texts(data: bytes) -> bytes:
    """The parts of the body outside strings."""
    if b"\\" in data:
        return _TEXT.sub(b"", data)
    return b"".join(data.split(b'"')[::2])  # No quote is escaped, so every second part is a string.


def depth(data: bytes) -> int:
    """How deeply JSON is nested, at most; it need not be well formed."""
    steps = _without_texts(data).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(array("b", steps), initial=0))


def widest(data: bytes) -> int:
    """How many names the largest JSON object has."""
    most, counts = 0, [0]
    for sign in _without_texts(data).translate(None, _NOT_NAMES):
        if sign in b"{[":
            counts.append(0)
        elif sign in b"}]":
            if len(counts) > 1:
                counts.pop()
        else:
            counts[-1] += 1
            most = max(most, counts[-1])
    return most


def check_json(data: bytes, settings: ServerSettings) -> None:
    """Refuse bytes that no decoder should see."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise Problem(400, "invalid_utf8", "the body is not UTF-8") from None
    if b"\0" in data:
        raise Problem(400, "invalid_utf8", "the body is not UTF-8: it looks like UTF-16 or UTF-32")
    if data.count(b"[") + data.count(b"{") > settings.max_depth and depth(data) > settings.max_depth:
        raise Problem(400, "json_too_deep", f"JSON may be nested {settings.max_depth} deep")
    if len(data) > LONGEST_NUMBER and _has_long_number(data):
        raise Problem(400, "number_too_long", f"a number may have {LONGEST_NUMBER:,} digits: send it as text")
    if (name := _named_twice(data)) is not None:
        raise Problem(
            400, "duplicate_key", f"an object has the name {name[:60]!a} twice: which one counts is not clear"
        )


def _has_long_number(data: bytes) -> bool:
    # A run of that many digits fills one of these blocks, and most blocks do not begin with a digit.
    block = LONGEST_NUMBER // 2
    if not any(data[start : start + block].isdigit() for start in range(0, len(data), block)):
        return False
    return _LONG.search(_without_texts(data)) is not None


def _named_twice(data: bytes) -> str | None:
    """A name that one object of this JSON has more than once; None: there is none, or this is not JSON at all."""
    if b"\\" not in data and not (any(sign in data for sign in _AFTER_TEXT) and _APART.search(data)):
        try:
            plain = _encode(_decode(data))
        except (msgspec.MsgspecError, OverflowError, RecursionError):
            pass  # the slow way accepts more kinds of numbers
        else:
            # Decoding keeps one of several equal names. No string contains a quote here, so `":` ends a name. A string
            # that begins with a colon is counted on both sides.
            if data.count(b'":') == plain.count(b'":'):
                return None
    try:
        json.loads(data, object_pairs_hook=_once)
    except _Twice as error:
        return str(error.args[0])
    except (ValueError, RecursionError):
        pass  # the decoder reports what is wrong
    return None


class _Twice(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise _Twice(name)
        names.add(name)


def check_names(data: bytes, settings: ServerSettings) -> None:
    """Refuse objects with too many names, in the parts of a body that hold user data."""
    if data.count(b":") > settings.max_keys and widest(data) > settings.max_keys:
        raise Problem(422, "too_many_keys", f"an object may have {settings.max_keys:,} names")


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_AT = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)


def decode(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    """The decoded body. Raises Problem."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise invalid(error, data) from None
    except (msgspec.DecodeError, UnicodeError):
        raise malformed(data) from None
    except RecursionError:
        raise Problem(400, "json_too_deep", "JSON is nested too deeply") from None


def invalid(error: msgspec.ValidationError, data: bytes | None = None) -> Problem:
    """The Problem for JSON with the wrong structure."""
    text = str(error)
    if "out of range" in text and data is not None:
        return malformed(data)
    if match := _UNKNOWN.fullmatch(text):
        name, where = match[1][:60], match[2] or ""
        return Problem(422, "unknown_field", f"there is no field {name!a} here", path=_path(where))
    where = ""
    if match := _AT.fullmatch(text):
        text, where = match[1], match[2]
    name = where.rpartition(".")[2]
    return Problem(422, _CODES.get(name, "invalid_field"), text[:1].lower() + text[1:], path=_path(where))


_CODES = {"run_at": "invalid_run_at"}


def _path(where: str) -> str:
    return where.lstrip(".")[:200] or "$"


def malformed(data: bytes) -> Problem:
    """The Problem for bytes that are not JSON."""
    try:
        # Python's reader accepts values that JSON does not have, so that the message can name them.
        value = json.loads(data)
    except (ValueError, RecursionError):
        return Problem(400, "malformed_json", "the body is not JSON")
    for leaf in _leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return Problem(400, "non_finite_number", "numbers must be finite: NaN, Infinity and 1e999 are not")
        if isinstance(leaf, str) and any("\ud800" <= sign <= "\udfff" for sign in leaf):
            return Problem(422, "invalid_unicode", "text with half a surrogate pair is not Unicode")
    return Problem(400, "malformed_json", "the body is not JSON")


def _leaves(value: Any) -> Iterator[Any]:
    open_ = [value]
    while open_:
        node = open_.pop()
        if is_dict(node):
            yield from node
            open_.extend(node.values())
        elif is_list(node):
            open_.extend(node)
        else:
            yield node


# ── the query string ─────────────────────────────────────────────────────────

_MAX_QUERY = 8 * 1024


class Query:
    """Reads the query string into a Struct."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._many: set[str] = set()
        for field in msgspec.structs.fields(kind):
            if "list[" in str(field.type) or "tuple[" in str(field.type):
                self._many.add(field.encode_name)
        self._known = {field.encode_name for field in msgspec.structs.fields(kind)}

    def read(self, raw: bytes) -> Any:
        if not raw:
            return msgspec.convert({}, self.kind)
        values: dict[str, Any] = {}
        for name, value in pairs(raw):
            if name not in self._known:
                raise unknown_parameter(name)
            if name in self._many:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise Problem(422, "invalid_parameter", f"{name} is given twice", path=name)
            else:
                values[name] = value
        try:
            return msgspec.convert(values, self.kind, strict=False)
        except msgspec.ValidationError as error:
            match = _AT.fullmatch(str(error))
            text, where = (match[1], match[2]) if match else (str(error), "")
            raise Problem(422, "invalid_parameter", text[:1].lower() + text[1:], path=_path(where)) from None


def pairs(raw: bytes) -> list[tuple[str, str]]:
    """The query string's parameters."""
    if len(raw) > _MAX_QUERY:
        raise Problem(422, "invalid_parameter", "the query string is too long")
    try:
        parameters = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise Problem(422, "invalid_parameter", "the query string cannot be read") from None
    if any("\0" in value for _, value in parameters):
        raise Problem(422, "invalid_parameter", "a parameter has a NUL in it")
    return parameters


def unknown_parameter(name: str) -> Problem:
    if name in {"sort", "order", "order_by"}:
        return Problem(422, "invalid_sort", "the order is fixed: the newest first", path=name)
    return Problem(422, "unknown_parameter", f"there is no parameter {name[:60]!a} here", path=name[:60])
