"""ClickHouse over its HTTP interface: one statement per request, with the rows of an insert as the body."""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

import h11

from headrace.errors import Unavailable
from headrace.sink.address import SinkAddress
from headrace.sink.table import CREATE, INSERT
from headrace.webhooks.http_post import look_up

TIMEOUT: Final = 20.0
"""Seconds for one request in all."""
MAX_ANSWER: Final = 64 * 1024
"""Bytes of an answer that are read. Answers to inserts are empty, and errors are short."""
_EXCERPT: Final = 200
_UNKNOWN_TABLE: Final = "60"
_ERROR: Final = re.compile(r"Code: (\d+)\. DB::Exception", re.ASCII)
_SETTINGS: Final = {
    # An insert is answered when the rows are stored, and not earlier.
    "async_insert": "0",
    "wait_end_of_query": "1",
    # Times are sent as 2026-11-16T09:00:00.000001Z.
    "date_time_input_format": "best_effort",
    # A table of an earlier version may lack columns that this version sends.
    "input_format_skip_unknown_fields": "1",
}


class ClickHouseAnswer(NamedTuple):
    """The answer to one request."""

    status: int
    text: str
    """The beginning of the body."""

    @property
    def error(self) -> str:
        """The number of ClickHouse's error. Empty: none."""
        match = _ERROR.match(self.text)
        return match[1] if match else ""


class ClickHouse:
    """One table of one server. A connection serves one request, because there are only a few requests per minute."""

    def __init__(self, address: SinkAddress, *, timeout: float = TIMEOUT) -> None:
        self._address = address
        self._timeout = timeout
        self._tls: ssl.SSLContext | None = None

    async def insert(self, rows: bytes, token: str) -> None:
        """Store rows, one JSON object per line. Makes the table if there is none. Raises Unavailable.

        A call may be repeated with the same token: ClickHouse stores its rows once.
        """
        place = {"database": self._address.database, "table": self._address.table}
        settings = {**_SETTINGS, "insert_deduplication_token": token}
        answer = await self._post(INSERT.format_map(place), rows, settings)
        if answer.error == _UNKNOWN_TABLE:
            self._must_work(await self._post("", CREATE.format_map(place).encode(), {}))
            answer = await self._post(INSERT.format_map(place), rows, settings)
        self._must_work(answer)

    def _must_work(self, answer: ClickHouseAnswer) -> None:
        if answer.status != 200 or answer.error:
            raise Unavailable(f"ClickHouse at {self._address.shown} answered {answer.status}: {answer.text}")

    async def _post(self, statement: str, body: bytes, settings: Mapping[str, str]) -> ClickHouseAnswer:
        address = self._address
        parameters = {**({"query": statement} if statement else {}), **settings}
        # The user and the password are in a header, because servers and proxies log addresses.
        secret = b64encode(f"{address.user}:{address.password}".encode()).decode()
        headers = [
            ("Host", address.authority),
            ("Connection", "close"),
            ("Content-Length", str(len(body))),
            ("Authorization", f"Basic {secret}"),
        ]
        request = h11.Request(method="POST", target=f"/?{urlencode(parameters)}", headers=headers)
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await self._connect()
                try:
                    exchange = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER)
                    for part in (request, h11.Data(data=body), h11.EndOfMessage()):
                        writer.write(exchange.send(part) or b"")
                    await writer.drain()
                    return await _answer(exchange, reader)
                finally:
                    writer.transport.abort()
        except TimeoutError:
            problem = f"no answer within {self._timeout:g} s"
        except ssl.SSLCertVerificationError as error:
            problem = f"its certificate is not valid: {error.verify_message}"
        except h11.RemoteProtocolError:
            problem = "its answer is not complete HTTP"
        except (OSError, UnicodeError) as error:
            problem = str(getattr(error, "strerror", None) or type(error).__name__)
        raise Unavailable(f"ClickHouse at {address.shown} cannot be reached: {problem}")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context(cafile=address.ca or None)
        problem: OSError | None = None
        # The names are looked up in a thread of their own, so that a slow name server does not hold the worker's threads.
        for place in await look_up(address.host, address.port):
            try:
                return await asyncio.open_connection(
                    place, address.port, ssl=self._tls, server_hostname=address.host if self._tls else None
                )
            except OSError as error:
                problem = error
        raise problem or OSError("its name has no address")


async def _answer(exchange: h11.Connection, reader: asyncio.StreamReader) -> ClickHouseAnswer:
    status, body = 0, b""
    while True:
        event = exchange.next_event()
        if event is h11.NEED_DATA:
            exchange.receive_data(await reader.read(4096))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER:
                return ClickHouseAnswer(status, _excerpt(body))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return ClickHouseAnswer(status, _excerpt(body))


def _excerpt(body: bytes) -> str:
    text = body[: 4 * _EXCERPT].decode(errors="replace")
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())[:_EXCERPT]
