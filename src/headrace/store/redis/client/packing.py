"""Commands as the bytes that a server reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

# The stub of hiredis declares neither the result nor that a command may have any number of words.
packed: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

LARGE: Final = 4096
"""Bytes of a word that is sent without a copy. Copying a smaller one costs less than a buffer of its own."""


def pieces(command: tuple[Any, ...]) -> list[bytes]:
    """A command as `packed` makes it, without a copy of its large words."""
    buffers: list[bytes] = []
    small = [b"*%d\r\n" % len(command)]
    for word in command:
        raw = word if isinstance(word, bytes) else str(word).encode()
        if len(raw) < LARGE:
            small.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
        else:
            buffers += (b"%b$%d\r\n" % (b"".join(small), len(raw)), raw)
            small = [b"\r\n"]
    return [*buffers, b"".join(small)]
