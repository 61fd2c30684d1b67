"""The driver, which has no types. Only this module imports it."""

from __future__ import annotations

import contextlib
import socket
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
"""The errors that a connection may raise."""

AT_CONNECT: Final[tuple[type[BaseException], ...]] = (*TROUBLE, ValueError)
"""The same for connecting, where a bad address is a ValueError."""

_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
"""A silent peer gets a keepalive after 10 s and is given up 15 s later. Not every system has all options."""


def socket_of(connection: Connection) -> Any:
    """The socket of a connection, or None: the driver has no public way to it."""
    transport = getattr(connection, "_transport", None)
    return transport.get_extra_info("socket") if transport is not None else None


def is_encrypted(connection: Connection) -> bool:
    """Whether what the socket carries is encrypted."""
    transport = getattr(connection, "_transport", None)
    return transport is None or transport.get_extra_info("ssl_object") is not None


def keep_alive(connection: Connection) -> None:
    """Let the kernel notice a lost peer, and keep idle connections alive in routers."""
    # Without the socket, the deadlines of calls still work.
    raw = socket_of(connection)
    if raw is None or raw.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
