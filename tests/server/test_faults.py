"""Faults of the server's own, and clients that are too slow."""

from __future__ import annotations

import asyncio
import logging
import time

import httpx2
import pytest

from headrace import Headrace
from headrace.errors import OutcomeUnknown, SchemaMismatch, StoreFull, Unavailable
from headrace.server import ServerSettings
from server.running import Running, running


async def test_s73_a_fault_says_nothing_of_itself(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret /etc/passwd select * from jobs")

    monkeypatch.setattr(server.store, "find", broken)
    answer = await server.http.get("/v1/jobs")
    assert answer.status_code == 500
    body = answer.json()
    assert body["code"] == "internal"
    assert "secret" not in answer.text
    assert set(body) == {"type", "title", "status", "detail", "code", "request_id"}
    (line,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert body["request_id"] in line.getMessage()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unavailable("no answer from db.internal:5432"), 503, "store_unavailable"),
        (OutcomeUnknown("db.internal:5432 went away"), 503, "outcome_unknown"),
        (StoreFull("/var/lib/db.internal is full"), 507, "store_full"),
        (SchemaMismatch("db.internal has schema 3"), 503, "schema_mismatch"),
    ],
)
async def test_a_store_that_is_away(
    server: Running, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(server.store, "find", away)
    answer = await server.http.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "db.internal" not in answer.text


async def test_readiness_is_the_stores(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await server.http.get("/readyz")).status_code == 200

    async def away() -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(server.store, "now", away)
    assert (await server.http.get("/readyz")).status_code == 503
    assert (await server.http.get("/livez")).status_code == 200


# ── slow clients ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /liv",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_s61_who_sends_too_slowly_is_closed(app: Headrace, beginning: bytes) -> None:
    patience = 1.5
    async with running(app, ServerSettings(port=0, read_timeout=patience)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        began = time.monotonic()
        writer.write(beginning)

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.1)
                writer.write(b"x" if beginning else b"")

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(60):
                await reader.read()
        except ConnectionError:
            pass
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            writer.close()
        assert time.monotonic() - began >= patience / 2
        assert (await server.http.get("/livez")).status_code == 200


@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_an_idle_connection_between_requests_is_no_slow_client(app: Headrace) -> None:
    async with running(app, ServerSettings(port=0, read_timeout=1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for pause in (0, 2):
            await asyncio.sleep(pause)
            writer.write(request)
            async with asyncio.timeout(60):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                await reader.readexactly(len(b'{"status":"ok"}'))
        writer.close()


async def test_a_client_that_leaves_halfway_is_no_fault(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await server.http.get("/livez")).status_code == 200
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_no_bytes_that_are_http(server: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert isinstance(await server.http.get("/livez"), httpx2.Response)
