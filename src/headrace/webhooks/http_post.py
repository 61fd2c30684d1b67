"""One POST to an address outside: looked up, checked, and sent to the very address that was checked. No redirects."""

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
"""In all: looking up, connecting, sending, and reading the answer."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes that are read of an answer, headers included."""
NAMES: Final = 64
"""Names that are looked up at once; more are tried again later."""
_CONNECT: Final = 4.0
"""Seconds for one of several addresses."""
_EXCERPT: Final = 200

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r\n)")

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) → addresses. Injected by tests."""


class DeliveryFailed(HeadraceError):
    """The receiver could not be reached, or its answer was none; worth another try."""

    code = "delivery_failed"


class PostAnswer(NamedTuple):
    """What the receiver said."""

    status: int
    retry_after: int | None
    """Seconds, if it said so."""
    said: str
    """The beginning of its body, for people."""


_free = threading.BoundedSemaphore(NAMES)


async def look_up(host: str, port: int) -> list[str]:
    """The system's own resolver, which cannot be interrupted.

    Each call has a thread of its own: a name whose servers do not answer holds it for half a minute, and must not hold those
    that the event loop shares with everybody else.
    """
    if not _free.acquire(blocking=False):
        raise OSError(errno.EAGAIN, f"{NAMES} names are being looked up")
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
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=ask, name="headrace-names", daemon=True).start()
    return await answer


class Poster:
    """Sends. Connections are not kept: the next delivery looks the name up again."""

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
        """Send it; raises DeliveryFailed, or UnsafeWebhook before anything was sent."""
        target = read_url(check_url(url, self._allow))
        # Once the status is known it counts, however long the rest of the answer takes.
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
                raise DeliveryFailed(f"{target.shown} broke off: {_words(error)}") from None
        return heard[-1]

    async def _addresses(self, target: WebhookTarget) -> list[str]:
        """Where to connect to. One bad address makes all of them suspect: the name is made to lead inside."""
        if (address := literal(target.host)) is not None:
            check_address(address, self._allow)
            return [str(address)]
        found = await self._find(target)
        if not self._allow.has(target.host):
            for each in found:
                check_address(ipaddress.ip_address(each), self._allow)
        return found

    async def _find(self, target: WebhookTarget) -> list[str]:
        """Those who ask for the same name at the same time share the answer: a slow name costs one thread."""
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
            task.exception()  # everybody who asked may have given up by now

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
        """The address was checked before; this is whom we really talk to."""
        peer = writer.get_extra_info("peername")
        if peer is None:
            writer.transport.abort()
            raise DeliveryFailed(f"{target.shown} hung up at once")
        try:
            if not self._allow.has(target.host):
                check_address(ipaddress.ip_address(peer[0]), self._allow)
        except UnsafeWebhook:
            writer.transport.abort()
            raise


def _words(error: Exception | None) -> str:
    """What went wrong, without addresses: those are nobody's business."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
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
    """The status, and as much of the rest as is decent."""
    for _ in range(10):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise DeliveryFailed(f"the answer's headers are over {MAX_ANSWER // 1024} KiB") from None
        except asyncio.IncompleteReadError:
            raise DeliveryFailed("the connection was closed without an answer") from None
        found = _STATUS.match(head)
        if found is None:
            raise DeliveryFailed("what came back is no HTTP answer")
        status = int(found[1])
        if status >= 200:
            break
    else:
        raise DeliveryFailed("the answer never came to its end")
    fields = _fields(head)
    after = fields.get(b"retry-after", b"")
    # Seven digits are years: nobody means them.
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
    """Read on so that the receiver can finish its answer; what is beyond the limit is left."""
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
