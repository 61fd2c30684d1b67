"""Constant reads of figures: the store is read once a second, and further reads are slowed down."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from headrace import Headrace
from headrace.errors import Unavailable
from headrace.server import ServerSettings, cache
from headrace.server.api.resources import ENDPOINTS
from headrace.server.cache import Cached
from headrace.server.http.rate_limit import RateLimit
from server.running import Running, running

FIGURES = ["/v1/stats", "/v1/queues", "/metrics", "/v1/pauses", "/v1/workers", "/v1/autoscale"]
"""Known from memory, and asked of the store once a second."""
GROUP = "01a1efcc-6a97-879f-ab45-558a05d80d9f"
LOOKS = {each.path.replace("{name}", "none").replace("{id}", GROUP): each.looks for each in ENDPOINTS if each.looks}
"""What each look counts. One at a queue, a limit or a group that does not exist counts, too."""


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_and_then_one_by_one() -> None:
    watch = Watch()
    pace = RateLimit(5, 0.25, watch)
    assert [pace.wait("a") for _ in range(5)] == [0] * 5
    assert pace.wait("a") == pytest.approx(0.25)
    assert pace.wait("b") == 0
    watch.now += 0.25
    assert pace.wait("a") == 0
    assert pace.wait("a") == pytest.approx(0.25)  # a refused call was not counted
    watch.now += 100
    assert [pace.wait("a") > 0 for _ in range(6)] == [False] * 5 + [True]


def test_some_weigh_more() -> None:
    watch = Watch()
    pace = RateLimit(5, 0.25, watch)
    assert [pace.wait("a", 2), pace.wait("a", 2)] == [0, 0]
    assert pace.wait("a", 2) == pytest.approx(0.25)
    assert pace.wait("a") == 0


def test_whatever_is_polled_is_counted() -> None:
    assert set(FIGURES) < set(LOOKS)
    everything = {each.path for each in ENDPOINTS if each.method == "GET" and each.scope and "{" not in each.path}
    # What does not ask the store, and what is followed instead of looked at.
    assert everything - set(LOOKS) == {"/v1/tasks", "/v1/events", "/v1/session"}


def test_callers_are_remembered_within_bounds() -> None:
    pace = RateLimit(1, 60, Watch(), keys=100)
    for number in range(100_000):
        pace.wait(str(number))
    assert len(pace) == 100
    assert pace.wait("99999") > 0
    assert pace.wait("0") == 0


class Slow:
    """A store that answers, or fails, when it is told to."""

    def __init__(self) -> None:
        self.questions: list[asyncio.Future[int]] = []

    async def ask(self) -> int:
        self.questions.append(asyncio.get_running_loop().create_future())
        return await self.questions[-1]


async def begun(slow: Slow, questions: int) -> None:
    async with asyncio.timeout(60):
        while len(slow.questions) < questions:  # noqa: ASYNC110  # everything happens in this loop
            await asyncio.sleep(0)


async def test_a_question_that_fails_fails_for_all_who_asked() -> None:
    """When the store hangs, a caller does not wait for the timeouts of earlier callers."""
    slow = Slow()
    cached = Cached(slow.ask, 60)
    people = [asyncio.create_task(cached.get()) for _ in range(100)]
    await begun(slow, 1)
    people[0].cancel()  # a caller that leaves does not cancel the read
    slow.questions[0].set_exception(Unavailable("away"))
    answers = await asyncio.gather(*people, return_exceptions=True)
    assert [type(each) for each in answers] == [asyncio.CancelledError] + [Unavailable] * 99
    again = asyncio.create_task(cached.get())
    await begun(slow, 2)
    slow.questions[1].set_result(7)
    assert (await again, await cached.get(), len(slow.questions)) == (7, 7, 2)


async def test_a_question_that_nobody_waits_for_any_more_may_fail() -> None:
    slow = Slow()
    cached = Cached(slow.ask, 60)
    person = asyncio.create_task(cached.get())
    await begun(slow, 1)
    person.cancel()
    await asyncio.wait([person])
    slow.questions[0].set_exception(Unavailable("away"))
    await cached.aclose()


async def test_what_was_changed_while_the_store_was_asked_is_asked_again() -> None:
    slow = Slow()
    cached = Cached(slow.ask, 60)
    before = asyncio.create_task(cached.get())
    await begun(slow, 1)
    cached.forget()
    after = asyncio.create_task(cached.get())
    await begun(slow, 2)
    slow.questions[1].set_result(2)
    assert await after == 2
    slow.questions[0].set_result(1)  # late, and out of date
    assert (await before, await cached.get()) == (1, 2)


def still(server: Running) -> Watch:
    """The server's pace, by a clock that stands."""
    watch = Watch()
    server.service.figures._pace = RateLimit(
        server.service.settings.max_polls, 1 / server.service.settings.max_polls, watch
    )
    return watch


def refused(answer: httpx2.Response) -> bool:
    missing = {"none", GROUP}.intersection(answer.request.url.path.split("/"))
    if answer.status_code == 200 or (answer.status_code == 404 and missing):
        return False
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_polls"), answer.text
    assert answer.headers["retry-after"] == "1"
    return True


@pytest.mark.parametrize("path", LOOKS)
async def test_s53_beyond_so_many_looks_a_second_there_is_429(server: Running, path: str) -> None:
    watch = still(server)
    most = server.service.settings.max_polls // LOOKS[path]
    answers = [refused(await server.http.get(path)) for _ in range(most + 5)]
    assert answers == [False] * most + [True] * 5
    # It is one count for all of them.
    assert [refused(await server.http.get(each)) for each in LOOKS] == [True] * len(LOOKS)
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
    id = claimed.json()["jobs"][0]["id"]
    assert (await server.http.get(f"/v1/jobs/{id}")).status_code == 200


async def test_s53_a_thousand_looks_a_second_ask_the_store_once(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app, ServerSettings(port=0, max_polls=100_000, tidy=False)) as server:
        assert server.service.settings.stats_ttl >= 1
        asked: Counter[str] = Counter()
        for verb in ("stats", "pauses", "workers", "recent_work"):
            kept = getattr(server.service.figures, f"_{verb}")

            async def counted(verb: str = verb, ask: Callable[[], Awaitable[Any]] = kept._ask) -> Any:
                asked[verb] += 1
                return await ask()

            kept._ask = counted
        with monkeypatch.context() as patch:
            clock = SimpleNamespace(monotonic=lambda: clock.now, now=time.monotonic())
            patch.setattr(cache, "time", clock)
            for second, times in ((1, 20), (2, 1), (3, 1)):
                for _ in range(times):
                    answers = await asyncio.gather(*(server.http.get(path) for path in FIGURES * 10))
                    assert {each.status_code for each in answers} == {200}
                assert asked == {"stats": second, "pauses": second, "workers": second, "recent_work": 1}
                clock.now += 1
