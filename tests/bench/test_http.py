"""`make bench ARGS=--http`: the server is measured on every store. How fast it is, no test asks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.http.helper import Helper
from benchmarks.http.orders import Drive, Driven, OrderTimes, Serve, Up, job
from benchmarks.http.run import FULL, HTTP, QUICK, plan
from benchmarks.http.wire import Connection, WireFault, request
from benchmarks.result import HttpMeasurement, remarks
from headrace.bench.fork_server import BenchFailed

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
SERVE = Serve(what="headrace", url="memory://", queue="bench-q")


def bench(*args: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["--http", *args, "--quick", "--jobs", "100", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_every_store(store: str) -> None:
    found = bench("--store", store)
    assert [each["workload"] for each in found] == list(HTTP)
    assert {each["store"] for each in found} == {store}
    enqueue, batch, work, idle = found
    assert enqueue["beside"] == "a bare route"
    for figure in ("jobs_per_s", "floor_per_s", "ratio", "http_cpu_us_per_job", "bare_cpu_us_per_job", "floor_p50_ms"):
        assert enqueue[figure] > 0
    for each in found:
        assert 0 < each["p50_ms"] <= each["p99_ms"]
    for each in (batch, work):
        assert each["jobs"] == 100
        assert each["jobs_per_s"] > 0
    assert idle["jobs_per_s"] is None
    assert idle["idle_workers"] == 100
    for figure in ("rss_mib", "rss_mib_alone"):
        assert idle[figure] > 0
    for figure in ("cpu_percent", "cpu_percent_alone"):
        assert idle[figure] >= 0


def test_the_table() -> None:
    result = CliRunner().invoke(main, ["--http", "--store", "memory", "--quick", "--jobs", "20"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["workload", *HTTP]
    assert "a bare route p50" in lines[1]
    assert "20 idle workers" in lines[4]


def test_what_is_said_of_idle_workers() -> None:
    measured = HttpMeasurement(
        store="redis",
        workload="http_idle",
        idle_workers=10_000,
        rss_mib=200.5,
        rss_mib_alone=50,
        cpu_percent=4.5,
        cpu_percent_alone=0.1,
    )
    assert remarks(measured) == "10,000 idle workers, 200.5 MiB (without them 50), 4.5 % CPU (without them 0.1)"


def test_one_kind_of_run_at_a_time() -> None:
    result = CliRunner().invoke(main, ["--http", "--tenants", "5", "--store", "memory"])
    assert result.exit_code == 78
    assert "give one of them" in result.stderr


def test_plans() -> None:
    assert plan(quick=False, jobs=None) == FULL
    assert plan(quick=True, jobs=None) == QUICK
    assert (FULL.idle, QUICK.idle) == (10_000, 500)
    few = plan(quick=True, jobs=30)
    assert (few.requests, few.turns, few.batch, few.jobs, few.idle, few.pickups) == (30, 1, 30, 30, 30, 30)
    assert plan(quick=False, jobs=5000).turns == FULL.turns


# ── its processes ────────────────────────────────────────────────────────────


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_processes_do_not_outlive_the_run() -> None:
    async with Helper.start("server") as server:
        await server.ask(SERVE, Up, within=60)
        spent = await server.ask(None, OrderTimes, within=60)
        assert alive(server.pid)
    assert spent.cpu > 0
    assert spent.memory > 1024 * 1024
    assert not alive(server.pid)


async def test_an_answer_that_is_no_success_ends_the_run() -> None:
    async with Helper.start("server") as server, Helper.start("client") as client:
        up = await server.ask(SERVE, Up, within=60)
        order = Drive(port=up.port, path="/v1/jobs", body='{"task": "no.such"}', connections=2, count=5)
        with pytest.raises(BenchFailed, match=r"the client process failed: .*answered 422.*unknown_task"):
            await client.ask(order, Driven, within=60)
        with pytest.raises(BenchFailed, match="the client process failed"):
            await client.ask(order, Driven, within=60)


async def test_a_server_that_goes_away_ends_the_run() -> None:
    async with Helper.start("client") as client:
        async with Helper.start("server") as server:
            up = await server.ask(SERVE, Up, within=60)
            order = Drive(port=up.port, path="/v1/jobs", body=job("x").decode(), connections=2, count=5)
            driven = await client.ask(order, Driven, within=60)
            assert len(driven.samples) == 5
        with pytest.raises(BenchFailed, match="the client process failed"):
            await client.ask(order, Driven, within=60)


async def test_no_answer_in_time() -> None:
    async with Helper.start("server") as server:
        with pytest.raises(BenchFailed, match="the server process did not answer within 0 s"):
            await server.ask(SERVE, Up, within=0)


# ── its client ───────────────────────────────────────────────────────────────


class Told:
    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.connection = Connection()
        self.connection.answered = lambda status, body: self.answers.append((status, body))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answers_arrive_in_pieces(size: int) -> None:
    told = Told()
    data = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nx: y\r\n\r\nabcd"
    for place in range(0, len(data), size):
        assert told.answers == []
        told.connection.data_received(data[place : place + size])
    assert told.answers == [(201, b"abcd")]
    told.connection.data_received(b"HTTP/1.1 204 No Content\r\ndate: now\r\n\r\n")
    assert told.answers == [(201, b"abcd"), (204, b"")]


def test_a_lost_connection_is_said() -> None:
    lost: list[bool] = []
    connection = Connection()
    connection.lost = lambda: lost.append(True)
    connection.connection_lost(None)
    assert lost == [True]
    with pytest.raises(WireFault):
        connection.send(b"x")


def test_a_request() -> None:
    assert request(80, "/x", b"{}") == (
        b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:80\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
