"""`headrace serve` as a process: it starts, stops well, and loses nothing that it has acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace import ConfigError, Headrace
from headrace.model.job import JobId, parse_id
from headrace.operate import tokens
from headrace.server import asgi
from headrace.store import connect
from server.process import APP, serving
from server.running import Running, running
from servers.process import free_port


@pytest.fixture(params=["sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    """A store that outlives a process."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


async def test_it_starts_logs_and_ends_well(folder: Path, store_url: str) -> None:
    port = free_port()
    async with serving(folder, store_url, port) as process, httpx2.AsyncClient(timeout=30, verify=False) as client:
        made = await client.post(f"http://127.0.0.1:{port}/v1/jobs", json={"task": "add", "args": [1]})
        assert made.status_code == 201
        process.send_signal(signal.SIGTERM)
        out, complaints = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert {"method": "POST", "path": "/v1/jobs", "status": 201}.items() <= lines[-1].items()
    assert f"http://127.0.0.1:{port}/ — Ctrl-C ends" in complaints.decode()
    assert "Traceback" not in complaints.decode()


async def test_dev_has_a_server_beside_its_worker(folder: Path, store_url: str) -> None:
    port = free_port()
    async with (
        serving(folder, store_url, port, command="dev") as process,
        httpx2.AsyncClient(timeout=30, verify=False) as client,
    ):
        base = f"http://127.0.0.1:{port}/v1/jobs"
        made = await client.post(base, json={"task": "add", "args": [40, 2]})
        answer = await client.get(f"{base}/{made.json()['id']}/result", params={"wait": "20s"})
        assert answer.json()["result"] == 42
        # A second one finds the port taken, and goes on without.
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli", "dev", "shop:app", "--port", str(port),
            cwd=folder, env={**os.environ, "HEADRACE_URL": store_url},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert second.stderr is not None
        complaint = await asyncio.wait_for(second.stderr.readline(), 60)
        assert b"is taken" in complaint
        for each in (second, process):
            each.send_signal(signal.SIGTERM)
            await asyncio.wait_for(each.communicate(), 60)
            assert each.returncode == 0


async def test_a_port_that_is_taken_is_one_line(folder: Path, store_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli", "serve", "shop:app", "--port", str(port),
            cwd=folder, env={**os.environ, "HEADRACE_URL": store_url},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, complaint = await process.communicate()
    assert process.returncode == 78
    assert complaint.decode() == (
        f"error: cannot listen on 127.0.0.1:{port}, Address already in use: give another port or host\n"
    )


async def test_a_token_opens_it_to_others(folder: Path, store_url: str) -> None:
    store = connect(store_url)
    await store.open()
    token, _ = await tokens.create(store, "producer", scopes=["enqueue"])
    await store.close()
    port = free_port()
    async with (
        serving(folder, store_url, port, "--host", "0.0.0.0") as process,
        httpx2.AsyncClient(timeout=30, verify=False) as client,
    ):
        address = f"http://127.0.0.1:{port}/v1/jobs"
        asked = {"task": "add", "args": [1]}
        assert (await client.post(address, json=asked)).status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert (await client.post(address, json=asked, headers=bearer)).status_code == 201
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert token not in out.decode()


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_under_load_loses_nothing_acknowledged(
    folder: Path, store_url: str, how: signal.Signals
) -> None:
    port = free_port()
    acknowledged: dict[str, JobId] = {}
    enough = asyncio.Event()
    ending = asyncio.Event()

    async def answered(client: httpx2.AsyncClient, asked: dict[str, Any]) -> httpx2.Response:
        """Repeat the call until a server answers. The key ensures that there is one job."""
        while True:
            try:
                return await client.post(f"http://127.0.0.1:{port}/v1/jobs", json=asked)
            except httpx2.TransportError:
                await asyncio.sleep(0.02)

    async def produce(client: httpx2.AsyncClient, name: int) -> None:
        number = 0
        while not ending.is_set():
            key = f"{name}-{number}"
            answer = await answered(client, {"task": "add", "args": [number], "key": key})
            assert answer.status_code in {200, 201}, answer.text
            acknowledged[key] = parse_id(answer.json()["id"])
            number += 1
            if len(acknowledged) % 100 == 0:
                enough.set()

    async with httpx2.AsyncClient(timeout=30, verify=False) as client:
        producers: list[asyncio.Task[None]] = []
        for _ in range(3):
            async with serving(folder, store_url, port, "--no-access-log") as process:
                if not producers:
                    producers += [asyncio.create_task(produce(client, name)) for name in range(8)]
                enough.clear()
                async with asyncio.timeout(60):
                    await enough.wait()
                process.send_signal(how)
                _, complaints = await asyncio.wait_for(process.communicate(), 60)
                assert process.returncode == (0 if how is signal.SIGTERM else -how), complaints
        async with serving(folder, store_url, port, "--no-access-log"):
            ending.set()
            await asyncio.gather(*producers)
    store = connect(store_url)
    await store.open()
    try:
        found = await store.get(list(acknowledged.values()))
        page = (await store.stats()).queues[0]
    finally:
        await store.close()
    assert None not in found
    assert len(set(acknowledged.values())) == len(acknowledged)
    # What was stored and never acknowledged was asked for again by its key: nothing is there twice.
    assert page.ready == len(acknowledged)


@pytest.mark.parametrize("store_name", ["memory", "sqlite"], indirect=True)
async def test_a_graceful_stop_finishes_what_it_accepted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    enqueue = server.store.enqueue

    async def slow(batch: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await enqueue(batch)

    monkeypatch.setattr(server.store, "enqueue", slow)
    asking = asyncio.create_task(server.http.post("/v1/jobs", json={"task": "add", "args": [1]}))
    await begun.wait()
    server.server.stop()
    await server.service.ending.wait()
    go_on.set()
    answer = await asking
    assert answer.status_code == 201
    with pytest.raises(httpx2.TransportError):
        await server.http.get("/livez")


@pytest.mark.parametrize("store_name", ["memory", "sqlite"], indirect=True)
async def test_a_stop_waits_for_no_timer(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a server without work nor one with an idle connection has anything to wait for."""
    async with asyncio.timeout(60):
        loop = asyncio.get_running_loop()
        async with running(app) as server:
            assert (await server.http.get("/livez")).status_code == 200
            never = loop.time() + 3600
            call_at = loop.call_at
            monkeypatch.setattr(loop, "call_at", lambda when, *given, **named: call_at(never, *given, **named))


@pytest.mark.parametrize("url", ["http://hr_secret@127.0.0.1:8200", "https://queue.example"])
def test_a_server_does_not_serve_a_server(url: str) -> None:
    """It would have to be given what never leaves one."""
    with pytest.raises(ConfigError, match="give it the store itself") as caught:
        asgi(Headrace(url))
    assert "secret" not in str(caught.value)
