"""The driver, which has no types: imported here and nowhere else."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

asyncpg: Final[Any] = import_module("asyncpg")

Connection = Any
"""One of its connections."""

TROUBLE: Final[tuple[type[BaseException], ...]] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""Whatever a connection may raise."""

AT_CONNECT: Final[tuple[type[BaseException], ...]] = (*TROUBLE, ValueError)
"""The same for making one: an address that cannot be read is a ValueError."""
