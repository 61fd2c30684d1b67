"""Hostile requests, and what the answer must be."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx2

from server.running import Running

JSON = {"Content-Type": "application/json"}
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"


async def post(server: Running, content: bytes, path: str = "/v1/jobs") -> httpx2.Response:
    return await server.http.post(path, content=content, headers=JSON)


def refused(response: httpx2.Response, status: int, code: str) -> None:
    """A problem document of that code, without internal details."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"urn:headrace:problem:{code}"
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text


async def jobs(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await server.http.get("/v1/jobs")).json()["items"]
    return found


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


async def raw(server: Running, data: bytes) -> bytes:
    """What comes back on a bare connection, up to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


class _Pump(asyncio.Protocol):
    """Sends the same over and over until it has an answer, or may not any more."""

    def __init__(self, head: bytes, chunk: bytes, most: int) -> None:
        self._head = head
        self._chunk = chunk
        self._most = most
        self._held = False
        self.sent = 0
        self.heard = b""
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._head)
        self._pump()

    def _pump(self) -> None:
        if self._held or self.over.is_set() or self.sent >= self._most or self._transport.is_closing():
            return
        self._transport.write(self._chunk)
        self.sent += len(self._chunk)
        asyncio.get_running_loop().call_soon(self._pump)  # and hear meanwhile

    def pause_writing(self) -> None:
        self._held = True

    def resume_writing(self) -> None:
        self._held = False
        self._pump()

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def eof_received(self) -> bool:
        self.over.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


async def pumped(port: int, head: bytes, chunk: bytes, most: int) -> tuple[bytes, int]:
    """The answer to a client that sends without end, and how many bytes it had sent by then."""
    loop = asyncio.get_running_loop()
    transport, pump = await loop.create_connection(lambda: _Pump(head, chunk, most), "127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            await pump.over.wait()
        return pump.heard, pump.sent
    finally:
        transport.abort()


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])
