"""A small client for HTTP/1.1 that takes little time, so that the server is measured and not the client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import cast
from uuid import UUID

import msgspec

from headrace.errors import HeadraceError

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"

Answered = Callable[[int, bytes], None]
"""(status, body)."""


class WireFault(HeadraceError):
    """A server gave an unexpected answer, or none."""

    code = "bench_wire"


def request(port: int, path: str, body: bytes) -> bytes:
    """A whole POST, to be sent any number of times."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def look(port: int, path: str, token: str | None = None) -> bytes:
    """A whole GET."""
    bearer = "" if token is None else f"authorization: Bearer {token}\r\n"
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{bearer}\r\n".encode()


class Connection(asyncio.Protocol):
    """One connection that is kept alive: it sends, calls back with the answer, and sends again."""

    def __init__(self) -> None:
        self.answered: Answered | None = None
        self.lost: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._pending = b""

    @classmethod
    async def open(cls, port: int, *, source: str | None = None) -> Connection:
        """`source`: the local address, because one address has too few ports."""
        local = None if source is None else (source, 0)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, "127.0.0.1", port, local_addr=local)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self.lost is not None:
            self.lost()

    def send(self, data: bytes) -> None:
        if self._transport is None:
            raise WireFault("the server closed a connection in the middle of a run")
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._pending:
            data = self._pending + data
        head = data.find(_END)
        if head < 0:
            self._pending = data
            return
        status = int(data[9:12])
        found = _LENGTH.search(data, 0, head + 2)
        start = head + len(_END)
        end = start + (0 if found is None else int(found[1]))
        if len(data) < end:
            self._pending = data
            return
        self._pending = b""
        if self.answered is not None:
            self.answered(status, data[start:end])

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """One request and its answer."""
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.answered = lambda status, body: answer.set_result((status, body))
        self.lost = lambda: None if answer.done() else answer.set_exception(gone())
        self.send(data)
        return await answer

    def close(self) -> None:
        self.lost = None
        if self._transport is not None:
            self._transport.close()


def gone() -> WireFault:
    return WireFault("the server closed a connection without an answer")


def unexpected(status: int, body: bytes) -> WireFault:
    return WireFault(f"the server answered {status}: {body[:300].decode(errors='replace')}")


# ── a worker's part ──────────────────────────────────────────────────────────


class _Job(msgspec.Struct):
    id: UUID


class WireLease(msgspec.Struct):
    """The part of a claim's answer that is used."""

    lease: str
    jobs: list[_Job]


read_lease = msgspec.json.Decoder(WireLease).decode


def settlement(port: int, lease: WireLease) -> bytes:
    """A request that settles all of it as done."""
    ended = [{"outcome": "succeeded", "position": place, "id": job.id} for place, job in enumerate(lease.jobs)]
    return request(port, "/v1/settle", msgspec.json.encode({"lease": lease.lease, "settlements": ended}))
