"""One POST to an outside address: resolved, checked, and sent to the checked address itself. No redirects."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import h11

from headrace.webhooks.declare import (
    NOTHING,
    Allow,
    DeliveryFailed,
    UnsafeWebhook,
    WebhookTarget,
    check_address,
    check_url,
    literal,
    read_url,
)

TIMEOUT: Final = timedelta(seconds=10)
"""Seconds in all: resolving, connecting, sending, and reading the answer."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes of an answer that are read, with its headers."""
NAMES: Final = 64
"""Names that are resolved at once. Further ones are tried again later."""
_CONNECT: Final = 4.0
"""Seconds to connect to one of several addresses."""
INTERIM: Final = 10
"""Answers in all, with interim ones such as 100 Continue before the final one."""
_EXCERPT: Final = 200

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) → addresses. Injected by tests."""


class PostAnswer(NamedTuple):
    """The receiver's answer."""

    status: int
    retry_after: int | None
    """Seconds of its Retry-After header."""
    excerpt: str
    """The beginning of its body, for display."""


_free = threading.BoundedSemaphore(NAMES)


async def look_up(host: str, port: int) -> list[str]:
    """The system's own resolver, which cannot be interrupted.

    Each call has a thread of its own. A name whose servers do not answer blocks it for half a minute, and must not
    block the threads that the event loop shares with other code.
    """
    if not _free.acquire(blocking=False):
        raise OSError(errno.EAGAIN, f"{NAMES} names are being resolved")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(set_: Callable[[Any], None], what: Any) -> None:
        if not answer.done():
            set_(what)

    def ask() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome = answer.set_result, list(dict.fromkeys(str(address[0]) for *_, address in addresses))
        except (OSError, UnicodeError) as error:
            outcome = answer.set_exception, error
        finally:
            _free.release()
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=ask, name="headrace-names", daemon=True).start()
    return await answer


class Poster:
    """Sends POST requests. Connections are not kept, so that the next delivery resolves the name again."""

    def __init__(
        self,
        allow: Allow = NOTHING,
        *,
        timeout: timedelta = TIMEOUT,
        resolve: Resolve = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allow = allow
        self._timeout = timeout.total_seconds()
        self._resolve = resolve
        self._tls = tls
        self._looking: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> PostAnswer:
        """Send one request. Raises DeliveryFailed, or UnsafeWebhook before anything was sent."""
        target = read_url(check_url(url, self._allow))
        # The status counts once it is known, even if the rest of the answer takes too long.
        heard: list[PostAnswer] = []
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await self._addresses(target)
                reader, writer = await self._connect(target, addresses)
                try:
                    exchange = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER)
                    writer.writelines(exchange.send(part) or b"" for part in _request(target, headers, body))
                    await writer.drain()
                    await _read(exchange, reader, heard)
                finally:
                    writer.transport.abort()
        except TimeoutError:
            if not heard:
                raise DeliveryFailed(f"{target.shown} did not answer within {self._timeout:g} s") from None
        except (OSError, EOFError) as error:
            if not heard:
                raise DeliveryFailed(f"{target.shown} closed the connection early: {_words(error)}") from None
        return heard[-1]

    async def _addresses(self, target: WebhookTarget) -> list[str]:
        """Addresses to connect to. One forbidden address refuses the name, because it was made to lead inside."""
        if (address := literal(target.host)) is not None:
            check_address(address, self._allow)
            return [str(address)]
        addresses = await self._find(target)
        if not self._allow.has(target.host):
            for candidate in addresses:
                check_address(ipaddress.ip_address(candidate), self._allow)
        return addresses

    async def _find(self, target: WebhookTarget) -> list[str]:
        """Calls for the same name at the same time share the answer, so that a slow name takes one thread."""
        key = target.host, target.port
        task = self._looking.get(key)
        if task is None:
            task = self._looking[key] = asyncio.ensure_future(self._resolve(*key))
            task.add_done_callback(functools.partial(self._found, key))
        try:
            addresses = await asyncio.shield(task)
        except (OSError, UnicodeError) as error:
            raise DeliveryFailed(f"{target.shown} is not found: {_words(error)}") from None
        if not addresses:
            raise DeliveryFailed(f"{target.shown} is not found")
        return addresses

    def _found(self, key: tuple[str, int], task: asyncio.Task[list[str]]) -> None:
        del self._looking[key]
        if not task.cancelled():
            task.exception()  # all callers may have given up by now

    async def _connect(
        self, target: WebhookTarget, addresses: list[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls, name = None, None
        if target.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            tls, name = self._tls, target.host
        problem: Exception | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT if len(addresses) > 1 else None):
                    reader, writer = await asyncio.open_connection(
                        address, target.port, ssl=tls, server_hostname=name, limit=MAX_ANSWER
                    )
            except (OSError, TimeoutError) as error:
                problem = error
                continue
            self._check_peer(writer, target)
            return reader, writer
        raise DeliveryFailed(f"{target.shown} cannot be reached: {_words(problem)}")

    def _check_peer(self, writer: asyncio.StreamWriter, target: WebhookTarget) -> None:
        """Check the address of the open connection, too."""
        peer = writer.get_extra_info("peername")
        if peer is None:
            writer.transport.abort()
            raise DeliveryFailed(f"{target.shown} closed the connection at once")
        try:
            if not self._allow.has(target.host):
                check_address(ipaddress.ip_address(peer[0]), self._allow)
        except UnsafeWebhook:
            writer.transport.abort()
            raise


def _words(error: Exception | None) -> str:
    """The error in words, without addresses, which a tenant must not see."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS failed"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, TimeoutError):
        return error.strerror if len(error.strerror) < 80 else type(error).__name__
    return type(error).__name__


def _request(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> tuple[h11.Event, ...]:
    always = {"Host": target.authority, "Content-Length": str(len(body)), "Connection": "close"}
    fields = [*always.items(), *headers.items()]
    return h11.Request(method="POST", target=target.path, headers=fields), h11.Data(data=body), h11.EndOfMessage()


async def _read(exchange: h11.Connection, reader: asyncio.StreamReader, heard: list[PostAnswer]) -> None:
    """The status, and a bounded part of the rest."""
    try:
        response = await _response(exchange, reader)
        after = next((value for name, value in response.headers if name == b"retry-after"), b"")
        # Seven digits or more, at least eleven days, are ignored as a mistake.
        answer = PostAnswer(response.status_code, int(after) if after.isdigit() and len(after) < 7 else None, "")
        heard.append(answer)
        body = b""
        # The receiver can finish its answer. Bytes beyond the limit are not read.
        while len(body) < MAX_ANSWER and isinstance(part := await _event(exchange, reader), h11.Data):
            body += part.data
        heard.append(answer._replace(excerpt=_excerpt(body)))
    except h11.RemoteProtocolError as error:
        # A known status counts, even if the body is not as announced.
        if not heard:
            too_long = error.error_status_hint == 431
            problem = f"its headers are over {MAX_ANSWER // 1024} KiB" if too_long else "it is not HTTP"
            raise DeliveryFailed(f"the answer cannot be read: {problem}") from None


async def _response(exchange: h11.Connection, reader: asyncio.StreamReader) -> h11.Response:
    for _ in range(INTERIM):
        event = await _event(exchange, reader)
        if isinstance(event, h11.Response):
            if event.status_code > 599:
                raise DeliveryFailed("the answer cannot be read: it is not HTTP")
            return event
    raise DeliveryFailed("the answer is incomplete")


async def _event(exchange: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := exchange.next_event()) is h11.NEED_DATA:
        data = await reader.read(4096)
        if not data and exchange.their_state is h11.SEND_RESPONSE:
            raise DeliveryFailed("the connection was closed without an answer")
        exchange.receive_data(data)
    return event


def _excerpt(body: bytes) -> str:
    text = body[: 4 * _EXCERPT].decode(errors="replace")
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:_EXCERPT]
