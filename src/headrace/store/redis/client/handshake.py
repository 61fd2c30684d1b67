"""The beginning of a connection: the options of its socket, TLS, and the first commands."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.store.redis.client import faults
from headrace.store.redis.client.faults import Refused
from headrace.store.redis.client.url import Address

if TYPE_CHECKING:
    from headrace.store.redis.client.connection import Command, Reply

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
"""Seconds, seconds and number of the system's probes on a silent connection: 11 s until a dead one is noticed."""


def greeting(address: Address) -> list[Command]:
    """The first commands of a new connection: user and password, database, and last the name of the connection."""
    commands: list[Command] = []
    if address.password or address.username:
        commands.append(("AUTH", *filter(None, (address.username,)), address.password or ""))
    if address.db:
        commands.append(("SELECT", address.db))
    return [*commands, ("CLIENT", "SETNAME", "headrace")]


def welcomed(answers: Sequence[Reply], count: int) -> None:
    """Raise the first refusal among the answers to a greeting. A user need not have the right to set the name."""
    for number, answer in enumerate(answers, 1):
        if isinstance(answer, Refused) and not (number == count and faults.forbidden(answer)):
            raise answer


def keep_alive(wire: socket.socket) -> None:
    """Let the system detect a dead peer."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:  # not every system has them
            wire.setsockopt(socket.IPPROTO_TCP, option, value)


def tls_context(address: Address) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    named = f"tls_ca={address.tls_ca}"
    try:
        context = ssl.create_default_context(cafile=address.tls_ca)
        if address.tls_cert is not None:
            named = f"tls_cert={address.tls_cert}" + (f" with tls_key={address.tls_key}" if address.tls_key else "")
            context.load_cert_chain(address.tls_cert, address.tls_key)
    except OSError as error:
        raise ConfigError(f"{named} in the Redis URL cannot be used: {error.strerror or error}") from error
    return context
