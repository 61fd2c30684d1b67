"""The options that a job carries, as bytes and back."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.errors import BadArguments
from headrace.task.job_options import JobOptions

_NONE = JobOptions()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobOptions)
_json_decoder = msgspec.json.Decoder(JobOptions)


def encode_options(options: JobOptions) -> bytes | None:
    """None when nothing is overridden: most jobs store nothing here."""
    return None if options == _NONE else _encoder.encode(options)


def marked(options: bytes | None, *, by: str | None = None, key: str | None = None) -> bytes | None:
    """Encoded options with the job's producer and key, if given. Raises BadArguments."""
    if by is None and key is None:
        return options
    if key is None:
        return _signed(options, by)
    known = decode_options(options)
    return _encoder.encode(msgspec.structs.replace(known, by=by or known.by, key=key))


def traced(options: bytes | None, trace: str) -> bytes:
    """Encoded options with the producer's trace, unless the job has one of its own. Raises BadArguments."""
    if options is None:
        return _encoder.encode(JobOptions(trace=trace))
    known = decode_options(options)
    return options if known.trace is not None else _encoder.encode(msgspec.structs.replace(known, trace=trace))


@lru_cache(maxsize=256)
def _signed(options: bytes | None, by: str | None) -> bytes:
    # Most jobs of one producer have the same options, so the encoding is kept.
    return _encoder.encode(msgspec.structs.replace(decode_options(options), by=by))


@lru_cache(maxsize=256)
def decode_options(data: bytes | None) -> JobOptions:
    """MessagePack or JSON; raises BadArguments."""
    if not data:
        return _NONE
    try:
        # A MessagePack map never begins with "{", because that byte is the number 123.
        return _json_decoder.decode(data) if data[:1] == b"{" else _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArguments(f"the job's options cannot be read: {error}") from None


def readable_options(data: bytes | None) -> JobOptions:
    """The same for display: unreadable options count as none."""
    try:
        return decode_options(data)
    except BadArguments:
        return _NONE
