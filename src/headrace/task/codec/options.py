"""What one job asks for other than its task does."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.errors import BadArguments
from headrace.model.duration import LONGEST

Moment = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())] | Annotated[datetime, Meta(tz=True)] | None
"""A time limit of one job: so many seconds after it was enqueued, or that time; both by the store's clock."""


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Overrides of a task's options for one job; None: as the task says. Durations in seconds."""

    timeout: float | None = None
    max_attempts: int | None = None
    result_ttl: float | None = None
    expires: Moment = None
    """No attempt starts from then on."""
    deadline: Moment = None
    """Over all attempts."""
    webhook: str | None = None
    """A URL that is told how the job ended."""
    tenant: str | None = None
    """Whose it is, where that is no part of its lane: tenants do not take turns in its queue."""
    key: str | None = None
    """Its idempotency key, for the eye: the store keeps the key itself beside the job and forgets it sooner."""
    by: str | None = None
    """Its producer, for the eye: a token's name, or what the setting `producer` says."""
    redact: tuple[str, ...] = ()
    """Fields of its arguments to mask where the task is not known."""
    names: tuple[str, ...] = ()
    """By place: the names of positional arguments that are masked; empty for those that are not."""


_NONE = JobOptions()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobOptions)
_json_decoder = msgspec.json.Decoder(JobOptions)


def encode_options(options: JobOptions) -> bytes | None:
    """None when nothing is overridden: most jobs store nothing here."""
    return None if options == _NONE else _encoder.encode(options)


def marked(options: bytes | None, *, by: str | None = None, key: str | None = None) -> bytes | None:
    """Encoded options with the job's producer and key in them, as far as they are given; raises BadArguments."""
    if by is None and key is None:
        return options
    if key is None:
        return _signed(options, by)
    known = decode_options(options)
    return _encoder.encode(msgspec.structs.replace(known, by=by or known.by, key=key))


@lru_cache(maxsize=256)
def _signed(options: bytes | None, by: str | None) -> bytes:
    # Most jobs of one producer have the same options, so that one encoding serves them all.
    return _encoder.encode(msgspec.structs.replace(decode_options(options), by=by))


@lru_cache(maxsize=256)
def decode_options(data: bytes | None) -> JobOptions:
    """MessagePack or JSON; raises BadArguments."""
    if not data:
        return _NONE
    try:
        # A MessagePack map of ours never begins with "{": that byte would be the number 123.
        return _json_decoder.decode(data) if data[:1] == b"{" else _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArguments(f"the job's options cannot be read: {error}") from None


def readable_options(data: bytes | None) -> JobOptions:
    """The same for a look: options that cannot be read count as none."""
    try:
        return decode_options(data)
    except BadArguments:
        return _NONE


def moment_of(own: float | datetime | None, usual: timedelta | None, enqueued_at: datetime) -> datetime | None:
    """The time of a job's own limit, or else of its task's; None: it has none."""
    if own is None:
        return None if usual is None else enqueued_at + usual
    return own if isinstance(own, datetime) else enqueued_at + timedelta(seconds=own)
