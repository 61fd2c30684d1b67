"""One call of an endpoint: what its handler gets, and how it answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.model.job import JobId
from headrace.operate.operations import Operations
from headrace.server.http.boundary import Gone
from headrace.server.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.server.auth import Principal
    from headrace.server.http.boundary import Head
    from headrace.server.state import ServerState

T = TypeVar("T")

_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


class Call:
    """What a handler gets."""

    __slots__ = ("body", "head", "path", "principal", "query", "request", "request_id", "service")

    def __init__(
        self,
        service: ServerState,
        principal: Principal,
        request: Request,
        request_id: str,
        path: Mapping[str, str],
        body: Any,
        query: Any,
        head: Head,
    ) -> None:
        self.service = service
        self.principal = principal
        self.request = request
        self.request_id = request_id
        self.path = path
        self.body: Any = body
        """An instance of the endpoint's body type, or None."""
        self.query: Any = query
        """An instance of the endpoint's query type, or None."""
        self.head = head

    async def still_welcome(self) -> None:
        """Raise Problem 401 if the token was revoked or has expired while this call waited."""
        await self.service.auth.principal(self.request)

    async def while_there(self, answering: Coroutine[Any, Any, T]) -> T:
        """Await the result. Raises Gone when the client disconnects, so that the store does no useless work.

        Only for calls that change nothing, after the body has been read.
        """
        answer = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(self._hung_up())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Gone
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.wait({answer, gone})

    async def _hung_up(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    @property
    def operations(self) -> Operations:
        """The operator verbs, in the name of this caller."""
        service = self.service
        return Operations(
            service.client.bounded,
            audit=service.audit,
            actor=self.principal.name,
            task_of=service.app.tasks.get,
        )

    @property
    def job_id(self) -> JobId:
        """The `{id}` of the path."""
        return read_id(self.path["id"])


def read_id(text: str) -> JobId:
    """A job id from a path or a body."""
    if not _ID.fullmatch(text):
        raise Problem(422, "invalid_job_id", "that is not a job id: it looks like 01890a5d-ac96-774b-bcce-b302099a0001")
    return JobId(UUID(text))


encode = msgspec.json.Encoder().encode
"""The encoder of all JSON answers."""


class Answer(Response):
    """A JSON answer, without Starlette's work for other kinds of content."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [_JSON, (b"content-length", b"%d" % len(body))]
        if headers:
            self.raw_headers += [
                (name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()
            ]


class HtmlPage(Response):
    """An answer for a browser, with its own headers for security and caching."""


_JSON = (b"content-type", b"application/json")


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The usual answer: a value as JSON."""
    return Answer(encode(value), status, headers)


def nothing(status: int = 204) -> Response:
    """An answer without a body."""
    return Response(status_code=status)
