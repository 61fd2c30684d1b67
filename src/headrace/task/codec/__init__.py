"""The codec: from a function's signature to bytes and back. MessagePack inside, JSON accepted; never pickle."""

from headrace.task.codec.options import decode_options, encode_options, marked, readable_options, traced
from headrace.task.codec.redact import masked_result, scrub, secrets, show
from headrace.task.codec.signature import Signature
from headrace.task.job_options import JobOptions

__all__ = [
    "JobOptions",
    "Signature",
    "decode_options",
    "encode_options",
    "marked",
    "masked_result",
    "readable_options",
    "scrub",
    "secrets",
    "show",
    "traced",
]
