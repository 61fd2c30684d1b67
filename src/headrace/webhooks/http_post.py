"""One POST to an outside address: resolved, checked, and sent to the checked address itself. No redirects."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.webhooks.declare import (
    NOTHING,
    Allow,
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
_EXCERPT: Final = 200

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r\n)")

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) → addresses. Injected by tests."""


class DeliveryFailed(HeadraceError):
    """The receiver could not be reached, or did not answer with HTTP. The delivery is tried again."""

    code = "delivery_failed"


class PostAnswer(NamedTuple):
    """The receiver's answer."""

    status: int
    retry_after: int | None
    """Seconds of its Retry-After header."""
    said: str
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
        told: tuple[Callable[[Any], None], Any]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            told = answer.set_result, list(dict.fromkeys(str(address[0]) for *_, address in found))
        except (OSError, UnicodeError) as error:
            told = answer.set_exception, error
        finally:
            _free.release()
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(tell, *told)

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
                    writer.write(_request(target, headers, body))
                    await writer.drain()
                    await _read(reader, heard)
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
        found = await self._find(target)
        if not self._allow.has(target.host):
            for each in found:
                check_address(ipaddress.ip_address(each), self._allow)
        return found

    async def _find(self, target: WebhookTarget) -> list[str]:
        """Calls for the same name at the same time share the answer, so that a slow name takes one thread."""
        key = target.host, target.port
        task = self._looking.get(key)
        if task is None:
            task = self._looking[key] = asyncio.ensure_future(self._resolve(*key))
            task.add_done_callback(functools.partial(self._found, key))
        try:
            found = await asyncio.shield(task)
        except (OSError, UnicodeError) as error:
            raise DeliveryFailed(f"{target.shown} is not found: {_words(error)}") from None
        if not found:
            raise DeliveryFailed(f"{target.shown} is not found")
        return found

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


def _request(target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


async def _read(reader: asyncio.StreamReader, heard: list[PostAnswer]) -> None:
    """The status, and a bounded part of the rest."""
    for _ in range(10):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise DeliveryFailed(f"the answer's headers are over {MAX_ANSWER // 1024} KiB") from None
        except asyncio.IncompleteReadError:
            raise DeliveryFailed("the connection was closed without an answer") from None
        found = _STATUS.match(head)
        if found is None:
            raise DeliveryFailed("the answer is not HTTP")
        status = int(found[1])
        if status >= 200:
            break
    else:
        raise DeliveryFailed("the answer is incomplete")
    fields = _fields(head)
    after = fields.get(b"retry-after", b"")
    # Seven digits or more, at least eleven days, are ignored as a mistake.
    answer = PostAnswer(status, int(after) if after.isdigit() and len(after) < 7 else None, "")
    heard.append(answer)
    body = await _body(reader, fields, MAX_ANSWER - len(head))
    heard.append(answer._replace(said=_excerpt(body)))


def _fields(head: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            found.setdefault(name.strip().lower(), value.strip().lower())
    return found


async def _body(reader: asyncio.StreamReader, fields: dict[bytes, bytes], limit: int) -> bytes:
    """Read on, so that the receiver can finish its answer. Bytes beyond the limit are not read."""
    chunked = b"chunked" in fields.get(b"transfer-encoding", b"")
    length = fields.get(b"content-length", b"")
    limit = min(limit, int(length)) if length.isdigit() and len(length) < 18 and not chunked else limit
    body = b""
    with contextlib.suppress(OSError):
        while len(body) < limit and (some := await reader.read(min(4096, limit - len(body)))):
            body += some
            if chunked and body.endswith(b"0\r\n\r\n"):
                break
    return b"" if chunked else body


def _excerpt(body: bytes) -> str:
    text = body[: 4 * _EXCERPT].decode(errors="replace")
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:_EXCERPT]
