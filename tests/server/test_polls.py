"""Those who look at the figures all the time: asked of the store once a second, and slowed down beyond that."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from headrace import Headrace
from headrace.server import ServerSettings
from headrace.server.pace import Pace
from headrace.store.contract import Stats
from server.running import Running, running

FIGURES = ["/v1/stats", "/v1/queues", "/metrics", "/v1/pauses"]


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_and_then_one_by_one() -> None:
    watch = Watch()
    pace = Pace(5, 0.25, watch)
    assert [pace.wait("a") for _ in range(5)] == [0] * 5
    assert pace.wait("a") == pytest.approx(0.25)
    assert pace.wait("b") == 0
    watch.now += 0.25
    assert pace.wait("a") == 0
    assert pace.wait("a") == pytest.approx(0.25)  # who was refused was not counted
    watch.now += 100
    assert [pace.wait("a") > 0 for _ in range(6)] == [False] * 5 + [True]


def test_callers_are_remembered_within_bounds() -> None:
    pace = Pace(1, 60, Watch(), keys=100)
    for number in range(100_000):
        pace.wait(str(number))
    assert len(pace) == 100
    assert pace.wait("99999") > 0
    assert pace.wait("0") == 0


def still(server: Running) -> Watch:
    """The server's pace, by a clock that stands."""
    watch = Watch()
    server.service.figures._pace = Pace(server.service.settings.max_polls, 1 / server.service.settings.max_polls, watch)
    return watch


def refused(answer: httpx.Response) -> bool:
    if answer.status_code == 200:
        return False
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_polls"), answer.text
    assert answer.headers["retry-after"] == "1"
    return True


@pytest.mark.parametrize("path", FIGURES)
async def test_s53_beyond_so_many_looks_a_second_there_is_429(server: Running, path: str) -> None:
    watch = still(server)
    most = server.service.settings.max_polls
    answers = [refused(await server.http.get(path)) for _ in range(most + 5)]
    assert answers == [False] * most + [True] * 5
    # It is one count for all of them.
    assert [refused(await server.http.get(each)) for each in FIGURES] == [True] * len(FIGURES)
    watch.now += 1
    assert not refused(await server.http.get(path))


async def test_s53_everybody_counts_alone(server: Running) -> None:
    still(server)
    names = [await server.token("read", name=name) for name in ("one", "two")]
    async with server.client(names[0]) as one, server.client(names[1]) as two:
        for _ in range(server.service.settings.max_polls):
            assert not refused(await one.get("/metrics"))
        assert refused(await one.get("/metrics"))
        assert not refused(await two.get("/metrics"))


async def test_s53_producers_and_workers_are_not_held_up(server: Running) -> None:
    still(server)
    while not refused(await server.http.get("/v1/stats")):
        pass
    for _ in range(2 * server.service.settings.max_polls):
        assert (await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})).status_code == 201
    claimed = await server.http.post("/v1/claim", json={"queues": ["default"], "limit": 100})
    assert len(claimed.json()["jobs"]) == 100
    assert (await server.http.get("/v1/jobs")).status_code == 200


async def test_s53_a_thousand_looks_ask_the_store_once(app: Headrace) -> None:
    async with running(app, ServerSettings(port=0, max_polls=1000, stats_ttl=3600)) as server:
        figures = server.service.figures
        asked = 0
        ask = figures._stats._ask

        async def counted() -> Stats:
            nonlocal asked
            asked += 1
            return await ask()

        figures._stats._ask = counted
        found = await asyncio.gather(*(figures.stats() for _ in range(1000)))
        for path in FIGURES:
            assert (await server.http.get(path)).status_code == 200
        assert asked == 1
        assert all(each is found[0] for each in found)
