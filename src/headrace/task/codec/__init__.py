"""The codec: from a function's signature to bytes and back. MessagePack inside, JSON accepted; never pickle."""

from headrace.task.codec.options import JobOptions, decode_options, encode_options, marked, moment_of, readable_options
from headrace.task.codec.redact import scrub, show
from headrace.task.codec.signature import Signature

__all__ = [
    "JobOptions",
    "Signature",
    "decode_options",
    "encode_options",
    "marked",
    "moment_of",
    "readable_options",
    "scrub",
    "show",
]
