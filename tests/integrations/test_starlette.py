"""Starlette and FastAPI: the lifespan, the mounted API, and the example."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from headrace import Headrace
from headrace.integrations.starlette import lifespan, mounted
from headrace.operate import tokens
from headrace.server import asgi
from integrations.kit import load
from servers.process import free_port


@asynccontextmanager
async def running(web: Any) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """The application as a web server runs it: inside its lifespan."""
    async with (
        web.router.lifespan_context(web),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(web), base_url="http://localhost", timeout=30) as client,
    ):
        yield client


@pytest.fixture
def queue() -> Headrace:
    app = Headrace("memory://")

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    return app


async def test_a_worker_lives_as_long_as_the_web_application(queue: Headrace) -> None:
    async def sum_of(request: Request) -> JSONResponse:
        handle = await queue.tasks["add"].aenqueue(int(request.query_params["a"]), 2)
        return JSONResponse(await handle.aresult(timeout=60))

    web = Starlette(routes=[Route("/sum", sum_of)], lifespan=lifespan(queue, worker=True, concurrency=3))
    async with running(web) as client:
        assert (await client.get("/sum?a=1")).json() == 3
        (worker,) = await queue.aworkers()
        assert (worker.slots, worker.queues) == (3, ("default",))
    assert await queue.aworkers() == []
    await queue.aclose()


async def test_without_a_worker_jobs_wait(queue: Headrace) -> None:
    async with running(FastAPI(lifespan=lifespan(queue))):
        handle = await queue.tasks["add"].aenqueue(1, 2)
        assert (await handle.astatus()).state == "ready"
        assert await queue.aworkers() == []
    await queue.aclose()


async def test_ones_own_lifespan_is_there_for_as_long_as_jobs_run(queue: Headrace) -> None:
    open_now = False
    seen: list[bool] = []

    @queue.task(name="look")
    async def look() -> None:
        seen.append(open_now)

    @asynccontextmanager
    async def own(_: Any) -> AsyncGenerator[dict[str, Any], None]:
        nonlocal open_now
        open_now = True
        await look.aenqueue()  # the queue is open before
        yield {"answer": 42}
        open_now = False

    async def state(request: Request) -> JSONResponse:
        return JSONResponse(request.state.answer)

    web = Starlette(routes=[Route("/state", state)], lifespan=lifespan(queue, worker=True, within=own))
    async with web.router.lifespan_context(web) as given:
        assert given == {"answer": 42}
        handle = await look.aenqueue()
        await handle.aresult(timeout=60)
    assert seen == [True, True]
    assert not open_now
    await queue.aclose()


async def test_a_fault_at_the_start_leaves_nothing_open(queue: Headrace) -> None:
    @asynccontextmanager
    async def own(_: Any) -> AsyncGenerator[None, None]:
        raise RuntimeError("no database")
        yield

    web = Starlette(lifespan=lifespan(queue, worker=True, within=own))
    with pytest.raises(RuntimeError, match="no database"):
        async with web.router.lifespan_context(web):
            pass
    assert await queue.aworkers() == []
    await queue.aclose()


# ── mounted ──────────────────────────────────────────────────────────────────


@pytest.fixture
async def client(queue: Headrace) -> AsyncIterator[httpx2.AsyncClient]:
    api = asgi(queue)
    inner = Starlette(routes=[Mount("/queue", api)])
    web = FastAPI(lifespan=lifespan(queue, worker=True))
    web.mount("/admin", inner)

    @web.get("/hello")
    def hello() -> str:
        return "hello"

    async with running(web) as found:
        assert list(mounted(web.routes)) == [api]
        yield found
    await queue.aclose()


async def test_the_api_works_under_a_prefix(client: httpx2.AsyncClient, queue: Headrace) -> None:
    assert (await client.get("/hello")).json() == "hello"
    made = await client.post("/admin/queue/v1/jobs", json={"task": "add", "args": [20, 22]})
    assert made.status_code == 201
    assert await queue.tasks["add"].handle(made.json()["id"]).aresult(timeout=60) == 42
    found = await client.get(f"/admin/queue/v1/jobs/{made.json()['id']}")
    assert found.json()["state"] == "done"
    assert (await client.get("/admin/queue/livez")).status_code == 200
    assert (await client.get("/v1/jobs")).status_code == 404


async def test_tokens_count_under_a_prefix(client: httpx2.AsyncClient, queue: Headrace) -> None:
    store = queue.connect()
    await store.open()
    text, _ = await tokens.create(store, "ci", scopes=["read"])
    await store.close()
    assert (await client.get("/admin/queue/v1/queues")).status_code == 401
    assert (await client.get("/admin/queue/v1/nothing")).status_code == 401
    good = {"Authorization": f"Bearer {text}"}
    assert (await client.get("/admin/queue/v1/queues", headers=good)).status_code == 200
    assert (await client.post("/admin/queue/v1/queues/mail/pause", headers=good)).status_code == 403


# ── the example ──────────────────────────────────────────────────────────────


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, httpx2.AsyncClient]]:
    monkeypatch.setenv("SHOP_DB", str(tmp_path / "shop.db"))
    example = load("fastapi_app")
    async with running(example.web) as client:
        yield example, client
    await example.queue.aclose()
    del sys.modules["examples.fastapi_app"]


async def test_the_example_ships(shop: tuple[Any, httpx2.AsyncClient]) -> None:
    example, client = shop
    made = await client.post("/orders", json={"item": "tea", "count": 2})
    assert made.status_code == 201
    assert (await client.get(f"/receipts/{made.json()['job']}")).json() == {"receipt": "2 × tea shipped"}
    async with example.sessions() as session:
        assert (await session.get_one(example.Order, made.json()["order"])).shipped
    shipping = {each["name"]: each for each in (await client.get("/queue/v1/queues")).json()["items"]}["shipping"]
    assert shipping["done_total"] == 1


async def test_an_order_that_is_rolled_back_leaves_no_job(shop: tuple[Any, httpx2.AsyncClient]) -> None:
    example, client = shop
    assert (await client.post("/orders", json={"item": "nothing", "count": 1})).status_code == 409
    assert (await example.queue.afind()).jobs == []
    async with example.sessions() as session:
        assert await session.get(example.Order, 1) is None
    assert (await client.get("/receipts/00000000-0000-7000-8000-000000000000")).status_code == 404


WEB = """
from fastapi import FastAPI

from headrace import Headrace
from headrace.integrations.starlette import lifespan
from headrace.server import asgi

queue = Headrace("memory://")
api = asgi(queue)
web = FastAPI(lifespan=lifespan(queue))
web.mount("/queue", api)
"""


@pytest.mark.parametrize(("served", "prefix"), [("web:web", "/queue"), ("web:api", "")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_listeners_and_long_polls_do_not_keep_a_web_server_from_stopping(
    served: str, prefix: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Other servers than ours close what they run after the last answer: a stream has to hear of it before."""
    (tmp_path / "web.py").write_text(WEB)
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", served, "--port", str(port), "--log-level", "warning", cwd=tmp_path
    )
    url = f"http://127.0.0.1:{port}{prefix}"
    try:
        async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60, verify=False) as client:
            while True:
                try:
                    assert (await client.get(f"{url}/readyz")).status_code == 200
                    break
                except httpx2.TransportError:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)  # a process says nothing when it begins to listen
            async with client.stream("GET", f"{url}/v1/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                poll = asyncio.create_task(client.post(f"{url}/v1/claim", json={"queues": ["q"], "wait": 30}))
                await anext(lines)
                process.send_signal(number)
                assert [line async for line in lines] == []
            with suppress(httpx2.TransportError):  # it may not even have come in
                assert (await poll).status_code == 204
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_loop_for_every_request(queue: Headrace, caplog: pytest.LogCaptureFixture) -> None:
    """As test clients have that run no lifespan: what was opened in one loop is opened anew in the next."""
    web = Starlette(routes=[Mount("/queue", asgi(queue))])

    async def post() -> int:
        transport = httpx2.ASGITransport(web, client=("127.0.0.1", 5000))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/queue/v1/queues")).status_code == 200
            return (await client.post("/queue/v1/jobs", json={"task": "add", "args": [1, 2]})).status_code

    assert [asyncio.run(post()) for _ in range(3)] == [201, 201, 201]
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []
    asyncio.run(queue.aclose())
