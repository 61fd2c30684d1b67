"""Server-sent events: one job until it ends, the ends of all jobs, and going on where a stream broke off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx2
import pytest

from headrace import Headrace, current_job
from headrace.model.job import Batch, Job, JobId, JobState, LogLine, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Ending
from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.server.events import feed, tail
from headrace.server.events.feed import Feed
from headrace.server.events.follow import NOTHING, Follower, added, read_id
from headrace.server.events.tail import EndFilter, Listener, Tail, event_id
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from server.running import Running, running
from worker.harness import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Event(NamedTuple):
    name: str
    data: Any
    id: str


def read(block: str) -> Event | None:
    fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
    return Event(fields["event"], json.loads(fields["data"]), fields.get("id", "")) if "event" in fields else None


async def events(response: httpx2.Response) -> AsyncIterator[Event]:
    rest = ""
    async for text in response.aiter_text():
        *blocks, rest = (rest + text).split("\n\n")
        for block in blocks:
            if (found := read(block)) is not None:
                yield found


@asynccontextmanager
async def stream(client: httpx2.AsyncClient, path: str, **headers: str) -> AsyncGenerator[AsyncIterator[Event]]:
    async with asyncio.timeout(60), client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events(response)


async def take(source: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(source) for _ in range(count)]


async def put(
    store: Store, count: int = 1, *, task: str = "task", queue: str = "default", tenant: str = ""
) -> list[JobId]:
    batch = Batch(new_batch(), [NewJob(task, b"\x92\x90\x80", Lane(queue, 0, tenant))] * count)
    await store.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


# ── one job ──────────────────────────────────────────────────────────────────


async def test_one_job_until_it_ends(server: Running):
    gates = [asyncio.Event() for _ in range(3)]

    @server.app.task(name="steps")
    async def steps() -> str:
        job = current_job()
        await gates[0].wait()
        await job.progress(0.5, "half way")
        job.log("first\nline")
        await gates[1].wait()
        job.log("second")
        await gates[2].wait()
        return "done"

    id = (await server.http.post("/v1/jobs", json={"task": "steps"})).json()["id"]
    async with stream(server.http, f"/v1/jobs/{id}/events") as source:
        [first] = await take(source, 1)
        assert first.name == "state"
        assert first.data == {"state": "ready", "attempt": 0, "failures": 0, "run_at": None, "note": None, "waits": []}
        async with server.app.worker():
            [second] = await take(source, 1)
            assert second.data["state"] == "running"
            gates[0].set()
            [line, half] = await take(source, 2)
            assert (line.name, line.data["text"]) == ("log", "first\nline")
            assert (half.name, half.data) == ("progress", {"progress": 0.5, "doing": "half way"})
            gates[1].set()
            [more] = await take(source, 1)
            assert more.data["text"] == "second"
            gates[2].set()
            rest = [each async for each in source]
    [end] = rest
    assert end.name == "end"
    assert end.data.items() >= {"id": id, "state": "done", "result": "done", "failure": None}.items()
    ids = [each.id for each in (first, second, line, half, more, end)]
    assert len(set(ids)) == 6

    # A listener that reconnects with its last event gets the rest. One that has the end gets 204.
    async with stream(server.http, f"/v1/jobs/{id}/events", **{"Last-Event-ID": line.id}) as source:
        again = [each async for each in source]
    assert [(each.name, each.id) for each in again][-1] == ("end", end.id)
    assert [each.data["text"] for each in again if each.name == "log"] == ["second"]
    over = await server.http.get(f"/v1/jobs/{id}/events", headers={"Last-Event-ID": end.id})
    assert over.status_code == 204
    async with stream(server.http, f"/v1/jobs/{id}/events", **{"Last-Event-ID": "garbage"}) as source:
        whole = [each async for each in source]
    assert [each.name for each in whole] == ["log", "log", "progress", "end"]


async def test_jobs_that_cannot_be_followed(server: Running):
    [mine] = await put(server.store, tenant="acme")
    [theirs] = await put(server.store, tenant="other")
    text, _ = await tokens.create(server.store, "acme", scopes=[Scope.ENQUEUE], tenant="acme")
    async with server.client(text) as client:
        async with stream(client, f"/v1/jobs/{mine}/events") as source:
            assert (await anext(source)).name == "state"
        assert (await client.get(f"/v1/jobs/{theirs}/events")).json()["code"] == "job_not_found"
        assert (await client.get("/v1/jobs/x/events")).json()["code"] == "invalid_job_id"
        assert (await client.get("/v1/events")).json()["code"] == "missing_scope"


async def test_a_job_that_is_deleted(server: Running):
    [id] = await put(server.store)
    async with stream(server.http, f"/v1/jobs/{id}/events") as source:
        await anext(source)
        await server.store.delete([id])
        assert [each.name async for each in source] == ["gone"]


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{id}/events"])
async def test_s46_other_sites_are_refused(server: Running, path: str):
    [id] = await put(server.store)
    path = path.format(id=id)
    for headers in (
        {"Origin": "https://evil"},
        {"Origin": "null"},
        {"Origin": "https://evil", "Sec-Fetch-Site": "cross-site"},
    ):
        refused = await server.http.get(path, headers=headers)
        assert refused.status_code == 403
        assert refused.headers["content-type"] == "application/problem+json"
    async with stream(server.http, path, Origin=server.url):
        pass


async def test_a_head_does_not_hang(server: Running):
    async with asyncio.timeout(60):
        assert (await server.http.head("/v1/events")).status_code == 200
    assert server.service.hub.listening == 0


# ── all of them ──────────────────────────────────────────────────────────────


async def test_ends_of_all_jobs(server: Running):
    async with server.app.worker(), stream(server.http, "/v1/events") as source:
        added_ = (await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})).json()["id"]
        first = await anext(source)
        failed = (await server.http.post("/v1/jobs", json={"task": "fail"})).json()["id"]
        second = await anext(source)
    assert [(each.name, each.data["id"], each.data["state"]) for each in (first, second)] == [
        ("ended", added_, "done"),
        ("ended", failed, "dead"),
    ]
    assert first.data.items() >= {"queue": "default", "task": "add", "tenant": ""}.items()


async def test_only_what_one_asks_for(server: Running):
    async with (
        stream(server.http, "/v1/events?queue=mail") as mail,
        stream(server.http, "/v1/events?task=other&state=cancelled") as other,
        stream(server.http, "/v1/events?state=dead") as dead,
    ):
        [sent] = await put(server.store, queue="mail", task="send")
        [cancelled] = await put(server.store, task="other")
        await server.store.cancel([sent, cancelled])
        assert (await anext(mail)).data["id"] == str(sent)
        assert (await anext(other)).data["id"] == str(cancelled)
        [fail] = await put(server.store, queue="broken", task="fail")
        async with server.app.worker():
            assert (await anext(dead)).data["id"] == str(fail)
    assert (await server.http.get("/v1/events?state=nonsense")).status_code == 422


async def test_principals_hear_of_their_own_only(server: Running):
    text, _ = await tokens.create(server.store, "acme", scopes=[Scope.READ], tenant="acme")
    async with server.client(text) as client, stream(client, "/v1/events") as source:
        theirs = await put(server.store, 3, tenant="other")
        mine = await put(server.store, 2, tenant="acme")
        await server.store.cancel([*theirs, *mine])
        assert [each.data["id"] for each in await take(source, 2)] == [str(id) for id in mine]


async def test_going_on_where_it_broke_off(server: Running):
    async with stream(server.http, "/v1/events") as other:
        async with stream(server.http, "/v1/events") as source:
            first = await put(server.store, 2)
            await server.store.cancel(first)
            heard = await take(source, 2)
        await take(other, 2)
        missed = await put(server.store, 3)
        await server.store.cancel(missed)
        await take(other, 3)
        # The server remembers what it told meanwhile …
        async with stream(server.http, "/v1/events", **{"Last-Event-ID": heard[0].id}) as source:
            assert [each.data["id"] for each in await take(source, 4)] == [heard[1].data["id"], *map(str, missed)]
    await until(lambda: not server.service.hub.listening)
    # … and the store has what no listener got.
    more = await put(server.store, 1)
    await server.store.cancel(more)
    async with stream(server.http, "/v1/events", **{"Last-Event-ID": heard[1].id}) as source:
        ids = [each.data["id"] for each in await take(source, 4)]
        assert ids == [*map(str, missed), *map(str, more)]
        last = await put(server.store, 1)
        await server.store.cancel(last)
        assert (await anext(source)).data["id"] == str(last[0])


async def test_streams_end_when_the_server_stops(app: Headrace):
    async with running(app) as server:
        [id] = await put(server.store)
        client = server.client()
        one, all_ = asyncio.Event(), asyncio.Event()

        async def listen(path: str, open_: asyncio.Event) -> list[Event]:
            async with stream(client, path) as source:
                open_.set()
                return [each async for each in source]

        streams = [
            asyncio.create_task(listen(f"/v1/jobs/{id}/events", one)),
            asyncio.create_task(listen("/v1/events", all_)),
        ]
        await one.wait()
        await all_.wait()
    async with asyncio.timeout(60):
        await asyncio.gather(*streams)
        await client.aclose()


async def test_a_stream_says_that_it_lives(server: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "HEARTBEAT", 0.01)
    async with asyncio.timeout(60), server.http.stream("GET", "/v1/events") as response:
        text = ""
        async for some in response.aiter_text():
            text += some
            if text.count(": \n\n") >= 2:
                break
    assert text.startswith("retry: 2000\n\n")
    assert text.count(": \n\n") >= 2


async def test_a_stream_has_an_end(server: Running, monkeypatch: pytest.MonkeyPatch):
    """So that a token that was revoked does not listen for ever."""
    monkeypatch.setattr(feed, "HEARTBEAT", 0.01)
    monkeypatch.setattr(feed, "LONGEST", 0.02)
    async with stream(server.http, "/v1/events") as source:
        assert [each async for each in source] == []


# ── the tail, without a network ──────────────────────────────────────────────


class Written(MemoryStore):
    """Ends as a test writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.endings: list[Ending] = []
        self.time = NOW

    async def now(self) -> datetime:
        return self.time

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        found = [each for each in self.endings if each.at >= since]
        return sorted(found, key=lambda each: (each.at, each.id))[:limit]

    def end(self, seconds: float, *, count: int = 1, task: str = "task") -> list[Ending]:
        made = [
            Ending(job_id(new_batch(), 0), JobState.DONE, NOW + timedelta(seconds=seconds), "default", task, "")
            for _ in range(count)
        ]
        self.endings += made
        return sorted(made, key=lambda each: each.id)


async def hear(listener: Listener) -> list[Event]:
    """All that waits, as soon as there is something. The feed gives it in chunks."""
    async with asyncio.timeout(60):
        some = await listener.feed.next(60) or b""
        while chunk := await listener.feed.next(0):
            some += chunk
    return [found for block in some.decode().split("\n\n") if (found := read(block)) is not None]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "EVERY", 0.01)


def every() -> Listener:
    return Listener(Feed(), EndFilter())


async def test_asked_only_while_a_client_listens(quick: None):
    store = Written()
    store.end(-1)  # before the first listener
    looking = Tail(store)
    listeners = [every(), every()]
    for listener in listeners:
        await looking.join(listener, None)
    [one] = store.end(1)
    for listener in listeners:
        assert [each.id for each in await hear(listener)] == [event_id(one)]
    for listener in listeners:
        looking.leave(listener)
    await until(lambda: "headrace-tail" not in {task.get_name() for task in asyncio.all_tasks()})


async def test_one_that_is_committed_late_is_told(quick: None):
    store = Written()
    looking, listener = Tail(store), every()
    await looking.join(listener, None)
    [first] = store.end(2)
    assert [each.id for each in await hear(listener)] == [event_id(first)]
    [late] = store.end(1)
    assert [each.id for each in await hear(listener)] == [event_id(late)]
    looking.close()
    assert await listener.feed.next(60) is None


async def test_a_burst_is_told_by_its_number(quick: None):
    store = Written()
    looking, listener = Tail(store), every()
    await looking.join(listener, None)
    store.end(1, count=tail.RATE + 50)
    heard = await hear(listener)
    assert [each.name for each in heard] == ["ended"] * tail.RATE + ["skipped"]
    assert heard[-1].data == {"count": 50, "more": False}
    assert heard[-1].id
    looking.close()


async def test_what_was_missed_is_told_whatever_the_rate(quick: None):
    """Up to a page of what the store keeps. A listener that was away does not count as slow."""
    store = Written()
    looking, listener = Tail(store), every()
    [heard, *missed] = store.end(-60, count=tail.PAGE)
    await looking.join(listener, (heard.at, heard.id))
    told = await hear(listener)
    assert [each.id for each in told[:-1]] == [event_id(each) for each in missed]
    # A full page: there may be others behind it.
    assert (told[-1].name, told[-1].data, told[-1].id) == ("skipped", {"count": 0, "more": True}, event_id(missed[-1]))
    [last] = store.end(1)
    assert [each.id for each in await hear(listener)] == [event_id(last)]
    looking.close()


async def test_what_was_missed_is_told_up_to_a_page(quick: None):
    listener = every()
    missed = Written().end(-60, count=tail.PAGE + 7)
    listener.begin(missed)
    told = await hear(listener)
    assert [each.id for each in told[:-1]] == [event_id(each) for each in missed[: tail.PAGE]]
    assert (told[-1].name, told[-1].data, told[-1].id) == ("skipped", {"count": 7, "more": False}, event_id(missed[-1]))


async def test_more_than_a_client_can_read(quick: None):
    store = Written()
    looking, listener = Tail(store), every()
    await looking.join(listener, None)
    for second in range(8):
        store.end(1 + second, count=tail.PAGE)
    store.time = NOW + timedelta(seconds=20)
    heard = await hear(listener)
    assert heard[-1].name == "skipped"
    assert heard[-1].data["more"] is True
    # From there on as ever.
    [last] = store.end(21)
    async with asyncio.timeout(60):
        while (heard := await hear(listener))[-1].id != event_id(last):
            pass
    looking.close()


async def test_a_filter_finds_what_is_rare_and_a_listener_without_one_costs_the_store_one_page(quick: None):
    """Listeners without a filter get few events of a busy queue, so the tail reads no more for them."""

    async def first(*listeners: Listener) -> list[Event]:
        store = Written()
        looking = Tail(store)
        for listener in listeners:
            await looking.join(listener, None)
        for number in range(tail.PAGE + 500):
            store.end(1 + number / 1000)
        store.end(5, task="rare")
        heard = await hear(listeners[0])
        looking.close()
        return heard

    heard = await first(every(), every())
    assert heard[-1].data == {"count": tail.PAGE - tail.RATE, "more": True}
    heard = await first(Listener(Feed(), EndFilter(task="rare")), every())
    assert [each.data["task"] for each in heard] == ["rare"]


async def test_listeners_with_the_same_filter_share_its_work(quick: None, monkeypatch: pytest.MonkeyPatch):
    asked: list[Ending] = []
    wants = EndFilter.wants

    def counted(self: EndFilter, ending: Ending) -> bool:
        asked.append(ending)
        return wants(self, ending)

    store = Written()
    looking = Tail(store)
    listeners = [Listener(Feed(), EndFilter(state=JobState.DONE)) for _ in range(10)]
    for listener in listeners:
        await looking.join(listener, None)
    monkeypatch.setattr(EndFilter, "wants", counted)
    [one] = store.end(1)
    for listener in listeners:
        assert [each.id for each in await hear(listener)] == [event_id(one)]
    assert asked == [one]
    looking.close()


async def test_many_ends_of_one_moment(quick: None):
    store = Written()
    looking, listener = Tail(store), every()
    await looking.join(listener, None)
    store.end(1, count=tail.PAGE + 500)
    heard = await hear(listener)
    assert heard[-1].name == "skipped"
    [last] = store.end(2)
    async with asyncio.timeout(60):
        while (heard := await hear(listener))[-1].id != event_id(last):
            pass
    looking.close()


async def test_a_store_that_is_away_is_asked_again(quick: None, monkeypatch: pytest.MonkeyPatch):
    from headrace.errors import Unavailable

    class Away(Written):
        away = False

        async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
            if self.away:
                self.away = False
                raise Unavailable("gone for lunch")
            return await super().ended(since, limit)

    store = Away()
    looking, listener = Tail(store), every()
    await looking.join(listener, None)
    store.away = True
    [one] = store.end(1)
    assert [each.id for each in await hear(listener)] == [event_id(one)]
    looking.close()


def test_ids_that_cannot_be_read():
    for text in (None, "", "x", "1-2", "-1-" + "0" * 32, "9" * 18 + "-" + "0" * 32, "1-" + "g" * 32):
        assert tail.read_id(text) is None
    for text in (None, "", "1-2-3", "1-nonsense-0-0-0-", "0" * 5000):
        assert read_id(text) is NOTHING


# ── feeds ────────────────────────────────────────────────────────────────────


async def test_a_slow_listener_is_sent_away_with_a_last_word():
    one = Feed(most=3)
    for number in range(5):
        one.put(feed.event("ended", {"n": number}))
    some = await one.next(1)
    assert some is not None
    [last] = [read(block) for block in some.decode().strip().split("\n\n")]
    assert last is not None
    assert last.name == "dropped"
    assert last.data["reason"] == "slow"
    assert await one.next(1) is None


async def test_what_waits_for_a_slow_listener_is_written_in_small_steps():
    one = Feed()
    made = [feed.event("ended", {"n": number, "text": "x" * 300}) for number in range(500)]
    for each in made:
        one.put(each)
    parts: list[bytes] = []
    while sum(map(len, parts)) < sum(map(len, made)):
        some = await one.next(1)
        assert some
        parts.append(some)
    assert b"".join(parts) == b"".join(made)
    assert max(map(len, parts)) < feed.CHUNK + len(made[-1])


async def test_slow_listeners_wait_with_the_same_bytes():
    store = Written()
    ended = [store.end(number)[0] for number in range(100)]
    listeners = [every() for _ in range(20)]
    for listener in listeners:
        listener.begin()
        listener.hear(ended)
    waiting = {id(each) for listener in listeners for each in listener.feed._waiting}
    assert len(waiting) == 100


async def test_others_have_their_turn_while_many_are_told(quick: None):
    """However long it takes to tell all listeners, the loop does not stand still meanwhile."""
    heard: list[str] = []
    done = asyncio.Event()

    class Slow(Listener):
        def hear(self, endings: Iterable[Ending], *, more: bool = False) -> None:
            if list(endings):
                time.sleep(2 * tail.TURN)
                heard.append("listener")
                if heard.count("listener") == 3:
                    done.set()

    async def other() -> None:
        while not done.is_set():
            if heard:
                heard.append("other")
            await asyncio.sleep(0)

    store = Written()
    looking = Tail(store)
    listeners = [Slow(Feed(), EndFilter()) for _ in range(3)]
    for listener in listeners:
        await looking.join(listener, None)
    store.end(1)
    async with asyncio.timeout(60):
        await other()
    for listener in listeners:
        looking.leave(listener)
    first, last = heard.index("listener"), len(heard) - 1 - heard[::-1].index("listener")
    turns = "".join("L" if each == "listener" else "." for each in heard[first : last + 1])
    assert "LL" not in turns


def job(state: JobState = JobState.RUNNING, attempt: int = 1, **more: Any) -> Job:
    about: dict[str, Any] = {
        "id": JobId(new_batch()),
        "task": "task",
        "queue": "default",
        "priority": 0,
        "tenant": "",
        "limits": (),
        "failures": 0,
        "crashes": 0,
        "enqueued_at": NOW,
        "payload": b"",
    }
    return Job(state=state, attempt=attempt, **(about | more))


def lines(*texts: str) -> tuple[LogLine, ...]:
    return tuple(LogLine(NOW, text) for text in texts)


def told(follower: Follower, seen: Job) -> list[tuple[str, Any, str]]:
    found = [read(each.decode()) for each in follower.news(seen)]
    return [(each.name, each.data, each.id) for each in found if each is not None]


def test_lines_of_one_moment_are_told_once_also_after_a_break():
    first = Follower(Feed(), NOTHING, lambda _: {})
    heard = told(first, job(log=lines("a", "b")))
    assert [each[1].get("text") for each in heard] == [None, "a", "b"]
    assert [each[1]["text"] for each in told(first, job(log=lines("a", "b", "c")))] == ["c"]
    again = Follower(Feed(), read_id(heard[1][2]), lambda _: {})
    assert [each[1]["text"] for each in told(again, job(log=lines("a", "b", "c")))] == ["b", "c"]
    assert told(again, job(log=lines("a", "b", "c"))) == []


def test_a_log_that_loses_its_first_lines():
    assert [each.text for each in added(lines("a", "b"), lines("b", "c"))] == ["c"]
    assert [each.text for each in added(lines("a", "b"), lines("x", "y"))] == ["x", "y"]
    assert added(lines("a"), lines("a")) == ()
    assert [each.text for each in added((), lines("a"))] == ["a"]


def test_every_change_of_state_is_told():
    follower = Follower(Feed(), NOTHING, lambda seen: {"state": seen.state})
    states = [
        job(JobState.READY, 0),
        job(JobState.RUNNING, 1),
        job(JobState.SCHEDULED, 1, failures=1, run_at=NOW, note="later"),
        job(JobState.RUNNING, 2, failures=1),
        job(JobState.DEAD, 2, failures=2),
    ]
    heard = [told(follower, each) for each in states]
    assert [[name for name, _, _ in each] for each in heard] == [["state"]] * 4 + [["end"]]
    assert heard[2][0][1] == {
        "state": "scheduled",
        "attempt": 1,
        "failures": 1,
        "run_at": "2030-01-01T00:00:00Z",
        "note": "later",
        "waits": [],
    }
    assert read_id(heard[-1][0][2]).over


# ── figures ──────────────────────────────────────────────────────────────────


async def ready(heard: AsyncIterator[Event], queue: str, count: int) -> Event:
    """The first figures in which so many jobs of the queue wait."""
    async with asyncio.timeout(60):
        async for found in heard:
            if found.name == "stats" and count in [one["ready"] for one in found.data["items"] if one["name"] == queue]:
                return found
    raise AssertionError("the stream has ended")


async def test_figures_come_when_they_change(server: Running) -> None:
    async with stream(server.http, "/v1/events?event=stats") as heard:
        await ready(heard, "default", 0)
        await server.app.tasks["add"].aenqueue(1)
        found = await ready(heard, "default", 1)
        assert found.data.keys() == (await server.http.get("/v1/queues")).json().keys()
        await server.app.tasks["add"].aenqueue(2)
        await ready(heard, "default", 2)


async def test_figures_and_ends_share_a_stream(server: Running) -> None:
    async with stream(server.http, "/v1/events?event=stats&event=ended") as heard:
        await ready(heard, "default", 0)
        async with server.app.worker():
            await server.app.tasks["add"].aenqueue(1)
            async with asyncio.timeout(60):
                async for found in heard:
                    if found.name == "ended":
                        break


async def test_a_bound_token_gets_the_figures_of_its_queues(server: Running) -> None:
    token = await server.token("read", queues=["billing"])
    async with (
        server.client(token) as client,
        stream(client, "/v1/events?event=stats") as heard,
        asyncio.timeout(60),
    ):
        found = await anext(heard)
        assert [one["name"] for one in found.data["items"]] == ["billing"]
    assert server.service.hub.listening == 0


async def test_figures_end_when_the_server_stops(server: Running) -> None:
    async with stream(server.http, "/v1/events?event=stats") as heard, asyncio.timeout(60):
        await anext(heard)
        server.service.hub.dismiss()
        async for _ in heard:
            pass
