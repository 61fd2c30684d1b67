"""The options of one job that differ from those of its task."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.errors import BadArguments
from headrace.model.duration import LONGEST

Moment = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())] | Annotated[datetime, Meta(tz=True)] | None
"""A time limit of one job: seconds after its enqueue, or a time. Both by the store's clock."""


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Overrides of a task's options for one job. None: the task's option counts. Durations are in seconds."""

    timeout: float | None = None
    max_attempts: int | None = None
    result_ttl: float | None = None
    expires: Moment = None
    """No attempt starts after this."""
    deadline: Moment = None
    """Over all attempts."""
    webhook: str | None = None
    """A URL that receives the job's end."""
    tenant: str | None = None
    """The job's tenant in a queue where tenants do not take turns. There the lane has no tenant."""
    key: str | None = None
    """Its idempotency key, for display. The store keeps the key itself beside the job and forgets it sooner."""
    by: str | None = None
    """Its producer, for display: a token's name, or the setting `producer`."""
    redact: tuple[str, ...] = ()
    """Fields of its arguments to mask where the task is not known."""
    names: tuple[str, ...] = ()
    """The names of masked positional arguments, by place. Empty: not masked."""


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
