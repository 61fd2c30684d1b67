"""The codec: from a function's signature to bytes and back. MessagePack inside, JSON accepted; never pickle."""

from headrace.codec.options import JobOptions, decode_options, encode_options, marked, moment_of, readable_options
from headrace.codec.redact import scrub, show
from headrace.codec.signature import Signature

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
