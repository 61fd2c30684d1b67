"""Every scope at every endpoint, and what tokens bound to a queue or a tenant may know: made from the list of endpoints."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest

from headrace import Headrace
from headrace.model.job import Batch, Failure, JobState, NewJob, job_id, new_batch, parse_id
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import Finish
from headrace.operate import tokens
from headrace.server import asgi
from headrace.server.api.resources import ENDPOINTS
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.store.audit import Audit
from headrace.store.contract import Store

GUARDED = [each for each in ENDPOINTS if each.scope is not None]
OPEN = [each for each in ENDPOINTS if each.scope is None]
WITH_ID = [each for each in GUARDED if each.path.startswith("/v1/jobs/{id}")]
WITH_QUEUE = [each for each in GUARDED if each.path.startswith("/v1/queues/{name}")]

app = Headrace("memory://")
"""Knows no tasks: nothing of what is asked here has an effect."""


@pytest.fixture
def store_name() -> str:
    return "memory"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """Without what is different each time."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: dict[str, Any] = json.loads(self.body)
        assert found.pop("request_id")
        return found


class Server:
    """The ASGI application, called without a network; an answer that never ends is left after its head."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asgi = asgi(app, store=store)

    async def __call__(
        self,
        method: str,
        path: str,
        token: str | None = None,
        *,
        body: bytes = b"{}",
        query: str = "",
        client: str = "203.0.113.9",
        host: bytes = b"queue.example",
    ) -> Reply:
        headers = [(b"host", host), (b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(body)))
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": headers,
            "client": (client, 50000),
            "server": ("queue.example", 80),
        }
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        started, ended = asyncio.Event(), asyncio.Event()
        head: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                started.set()
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    ended.set()

        call = asyncio.create_task(self.asgi(scope, receive, send))
        begun = asyncio.create_task(started.wait())
        await asyncio.wait({call, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if b"text/event-stream" in dict(head.get("headers", ())).get(b"content-type", b""):
            ended.set()  # and now the client leaves
        await call
        fields = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
        return Reply(head["status"], fields, b"".join(parts))

    async def token(self, *scopes: Scope, queues: tuple[str, ...] = (), tenant: str | None = None) -> str:
        name = f"t{uuid4().hex}"
        return (await tokens.create(self.store, name, scopes=scopes, queues=queues, tenant=tenant))[0]

    async def job(self, queue: str, tenant: str) -> str:
        batch = Batch(new_batch(), [NewJob("t", msgspec.msgpack.encode(([], {})), Lane(queue=queue, tenant=tenant))])
        await self.store.enqueue(batch)
        return str(job_id(batch.id, 0))


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    made = Server(store)
    yield made
    await made.asgi.aclose()


def name(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def enough(endpoint: Endpoint) -> set[Scope | None]:
    """Any one of these will do."""
    return {endpoint.scope, *endpoint.also, Scope.ADMIN}


def filled(endpoint: Endpoint, **values: str) -> str:
    """Its path, with something of the right form for every parameter."""

    def value(match: re.Match[str]) -> str:
        known = match[1].partition(":")[0]
        return values.get(known) or (str(uuid4()) if known == "id" else "something")

    return re.sub(r"\{([^}]+)\}", value, endpoint.path)


def test_there_is_a_matrix() -> None:
    assert {each.scope for each in GUARDED} == set(Scope)
    assert WITH_ID
    assert WITH_QUEUE
    # Each endpoint without a token is a deliberate decision.
    opened = {each.path for each in OPEN if not each.path.startswith(("/docs/", "/dashboard/"))}
    assert opened <= {"/livez", "/readyz", "/healthz", "/openapi.json", "/docs", "/"}


# ── scopes ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("endpoint", GUARDED, ids=name)
async def test_s31_a_scope_at_an_endpoint(server: Server, endpoint: Endpoint, scope: Scope) -> None:
    reply = await server(endpoint.method, filled(endpoint), await server.token(scope))
    assert endpoint.scope is not None
    if scope in enough(endpoint):
        assert reply.status not in {401, 403}, reply
        assert reply.status < 500, reply
    else:
        assert reply.status == 403
        assert (reply.problem["code"], reply.problem["scope"]) == ("missing_scope", endpoint.scope)
        assert str(endpoint.scope) in reply.problem["detail"]


NOT_FOR_ALL = [each for each in GUARDED if enough(each) != set(Scope)]


@pytest.mark.parametrize("endpoint", NOT_FOR_ALL, ids=name)
async def test_all_the_other_scopes_are_not_enough(server: Server, endpoint: Endpoint) -> None:
    others = [scope for scope in Scope if scope not in enough(endpoint)]
    reply = await server(endpoint.method, filled(endpoint), await server.token(*others))
    assert (reply.status, reply.problem["code"]) == (403, "missing_scope")


@pytest.mark.parametrize("endpoint", GUARDED, ids=name)
async def test_no_token_and_bad_tokens(server: Server, endpoint: Endpoint) -> None:
    good = await server.token(Scope.ADMIN)
    _, gone = await tokens.create(server.store, "gone", scopes=["admin"])
    await tokens.revoke(server.store, "gone")
    wrong = good[:-1] + ("a" if good[-1] != "a" else "b")
    for token in (None, "", "random", wrong, f"hr_{gone.id}_{'a' * 27}", "é"):
        reply = await server(endpoint.method, filled(endpoint), token)
        assert reply.status == 401, token
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.problem["code"] == "unauthorized"
    reply = await server(endpoint.method, filled(endpoint), query=f"token={good}")
    assert reply.status == 401
    assert good.encode() not in reply.body


@pytest.mark.parametrize("endpoint", OPEN, ids=name)
async def test_open_endpoints(server: Server, endpoint: Endpoint) -> None:
    await server.token(Scope.ADMIN)
    assert (await server(endpoint.method, filled(endpoint))).status in {200, 404}


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/nothing", "/v1/jobs/a/b/c", "/v1/../etc/passwd", "/v1/secrets"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH"])
async def test_s28_unknown_paths_are_for_those_we_know(server: Server, method: str, path: str) -> None:
    good = await server.token(Scope.READ)
    assert (await server(method, path)).status == 401
    assert (await server(method, path, "wrong")).status == 401
    assert (await server(method, path, good)).status == 404


@pytest.mark.parametrize("endpoint", GUARDED, ids=name)
async def test_without_tokens_this_machine_may_do_everything(server: Server, endpoint: Endpoint) -> None:
    path = filled(endpoint)
    assert (await server(endpoint.method, path)).status == 401
    # Its Host is a public name, which a web page could have made point here.
    assert (await server(endpoint.method, path, client="127.0.0.1")).status == 421
    assert (await server(endpoint.method, path, host=b"127.0.0.1:8200")).status == 401
    reply = await server(endpoint.method, path, client="127.0.0.1", host=b"127.0.0.1:8200")
    assert reply.status not in {401, 403}, reply
    assert reply.status < 500, reply


# ── tenants and queues ───────────────────────────────────────────────────────


@pytest.mark.parametrize("endpoint", WITH_ID, ids=name)
async def test_s32_another_ones_job_is_like_none(server: Server, endpoint: Endpoint) -> None:
    bound = [
        await server.token(Scope.ADMIN, tenant="t1"),
        await server.token(Scope.ADMIN, queues=("mail",)),
        await server.token(Scope.ADMIN, queues=("mail",), tenant="t1"),
    ]
    theirs = await server.job("secret", "t2")
    before = await server.store.get([parse_id(theirs)])
    for token in bound:
        of_theirs = await server(endpoint.method, filled(endpoint, id=theirs), token)
        of_none = await server(endpoint.method, filled(endpoint, id=str(uuid4())), token)
        assert of_theirs.status == of_none.status == 404
        assert of_theirs.problem == of_none.problem
        without = {"x-request-id", "date"}
        assert {name: text for name, text in of_theirs.headers.items() if name not in without} == {
            name: text for name, text in of_none.headers.items() if name not in without
        }
    assert await server.store.get([parse_id(theirs)]) == before
    # With the right token there is something to be had.
    own = await server.job("mail", "t1")
    reply = await server(endpoint.method, filled(endpoint, id=own), bound[2])
    assert reply.status != 404, reply


@pytest.mark.parametrize("endpoint", WITH_QUEUE, ids=name)
async def test_another_ones_queue_is_like_none(server: Server, endpoint: Endpoint) -> None:
    await server.job("secret", "t2")
    await server.job("mail", "t1")
    token = await server.token(Scope.ADMIN, queues=("mail",))
    tenant = await server.token(Scope.ADMIN, tenant="t1")
    of_theirs = await server(endpoint.method, filled(endpoint, name="secret"), token)
    of_none = await server(endpoint.method, filled(endpoint, name="never-heard-of"), token)
    assert of_theirs.status == of_none.status == 404
    assert of_theirs.problem == of_none.problem
    # A queue belongs to all of its tenants: one of them can neither look at it nor move it.
    assert (await server(endpoint.method, filled(endpoint, name="mail"), tenant)).status == 404
    assert not await server.store.pauses()


LOOKING = [each for each in GUARDED if each.method == "GET" and "{" not in each.path]
FILTERS: list[dict[str, Any]] = [{"queue": "hidden"}, {"tenant": "others"}, {"task": "covert"}]
ALL: dict[str, Any] = {"everything": True}
MOVES: dict[str, list[dict[str, Any]]] = {
    "/v1/jobs/bulk": [
        {"action": action, **choice}
        for action in ("cancel", "retry", "delete")
        for choice in ({"ids": ["ID"]}, {"filter": {}, **ALL}, *({"filter": each} for each in FILTERS))
    ],
    "/v1/dead/replay": [{"ids": ["ID"]}, ALL, *FILTERS],
    "/v1/dead/discard": [{"reason": "why not", **choice} for choice in ({"ids": ["ID"]}, ALL, *FILTERS)],
    "/v1/claim": [{"queues": ["hidden"]}, {"queues": ["mail"]}, {"queues": ["mail", "hidden"]}],
}


async def put_out_of_sight(server: Server) -> list[str]:
    """Jobs in every state that other tenants must not see, and a pause and a worker of that queue."""
    store, ids = server.store, []
    for state in ("done", "dead", "running", "ready"):
        batch = Batch(new_batch(), [NewJob("covert", b"\x92\x91\xa5marks\x80", Lane(queue="hidden", tenant="others"))])
        await store.enqueue(batch)
        ids.append(str(job_id(batch.id, 0)))
        if state == "ready":
            continue
        lease = await store.claim(Ask(new_worker_id(), ("hidden",), 1, timedelta(seconds=60), new_token()))
        assert lease is not None
        failure = Failure(1, "covert.Error", "marks", "marks", await store.now())
        if state != "running":
            end = Finish(JobState.DONE) if state == "done" else Finish(JobState.DEAD, failure=failure, failures=1)
            await store.settle(lease.token, [(0, end)])
    await store.pause("hidden", by="covert")
    await Audit(store).note("covert", "queues.pause", "hidden")
    return ids


@pytest.mark.parametrize(
    "bound", [{"tenant": "own"}, {"queues": ("mail",)}, {"queues": ("mail",), "tenant": "own"}], ids=str
)
async def test_nothing_of_others_is_shown(server: Server, bound: dict[str, Any]) -> None:
    token = await server.token(Scope.ADMIN, **bound)
    ids = await put_out_of_sight(server)
    own = await server.job("mail", "own")
    seen = b""
    for endpoint in LOOKING:
        reply = await server(endpoint.method, endpoint.path, token)
        assert reply.status < 500
        told = [word for word in ("hidden", "others", "covert", "marks", *ids) if word.encode() in reply.body]
        assert not told, (endpoint.path, told, reply.body)
        seen += reply.body
    assert own.encode() in seen


@pytest.mark.parametrize(
    "bound", [{"tenant": "own"}, {"queues": ("mail",)}, {"queues": ("mail",), "tenant": "own"}], ids=str
)
async def test_s34_nothing_of_others_is_moved(server: Server, bound: dict[str, Any]) -> None:
    token = await server.token(Scope.ADMIN, **bound)
    ids = [parse_id(id) for id in await put_out_of_sight(server)]
    before, pauses = await server.store.get(ids), await server.store.pauses()
    for path, bodies in MOVES.items():
        for body in bodies:
            raw = json.dumps(body).replace('["ID"]', json.dumps([str(id) for id in ids]))
            reply = await server("POST", path, token, body=raw.encode())
            assert reply.status in {200, 202, 204, 404}, (path, raw, reply)
    assert await server.store.get(ids) == before
    assert await server.store.pauses() == pauses
