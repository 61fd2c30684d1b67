"""Jobs that share a lane wait as one range, wherever they stood in a call or in a stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Headrace
from headrace.client.bulk import CALL_BYTES, CHUNK, WINDOW, gather, loads
from headrace.model.job import Batch, Key, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.store.batches import segments
from headrace.task.codec import Signature
from headrace.task.task import JobCall

tenants = st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40)


def jobs(names: list[str], key: Key | None = None) -> list[NewJob]:
    # Each with a lane of its own that equals others: identity must not matter.
    return [NewJob("t", b"%d" % number, Lane(tenant=name), key=key) for number, name in enumerate(names)]


@given(tenants)
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
def test_every_lane_is_one_run_in_its_own_order(names: list[str]):
    made = jobs(names)
    together, ords = gather(made)
    assert len(segments(Batch(new_batch(), together))) == len(set(names))
    places = list(range(len(made))) if ords is None else ords
    assert [together[ord] for ord in places] == made
    order: defaultdict[str, list[int]] = defaultdict(list)
    for job in together:
        order[job.lane.tenant].append(int(job.payload))
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_keys_keep_the_order_they_were_given_in():
    key = Key("k", timedelta(days=1), b"d")
    made = jobs(["a", "b", "a"], key)
    assert gather(made) == (made, None)
    assert gather([]) == ([], None)


async def test_every_handle_is_of_its_own_job():
    app = Headrace("memory://")

    @app.task
    async def say(number: int) -> int:
        return number

    async with app, app.worker():
        handles = await app.aenqueue_many(say.using(tenant=f"t{n % 7}").job(n) for n in range(100))
        assert [await handle.aresult(timeout=30) for handle in handles] == list(range(100))
        assert len({handle.id for handle in handles}) == 100


# ── streams ──────────────────────────────────────────────────────────────────

streams = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 2500), st.booleans()), max_size=12)


def nothing(number: int) -> None:
    del number


NOTHING = Signature(nothing)


def call(number: int, tenant: str, key: Key | None = None) -> JobCall[None]:
    return JobCall(NewJob("t", b"%d" % number, Lane(tenant=tenant), key=key), NOTHING)


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes: no stream is slow, however busy the machine."""
    monkeypatch.setattr("headrace.client.bulk.monotonic", lambda: 0.0)


@given(streams)
@settings(max_examples=60, derandomize=True, database=None, deadline=None)
def test_a_stream_arrives_whole_and_every_lane_in_its_order(runs: list[tuple[str, int, bool]]):
    names = [(tenant, keyed) for tenant, count, keyed in runs for _ in range(count)]
    stream = [
        call(number, tenant, Key(str(number), timedelta(days=1), b"d") if keyed else None)
        for number, (tenant, keyed) in enumerate(names)
    ]
    sent: list[int] = []
    for load in loads(stream):
        assert 0 < len(load.calls) <= CHUNK
        assert [stream[place] for place in load.places] == load.calls
        sent += load.places
    assert sorted(sent) == list(range(len(stream)))
    by_lane: defaultdict[str, list[int]] = defaultdict(list)
    for place in sent:
        by_lane[names[place][0]].append(place)
    assert all(places == sorted(places) for places in by_lane.values())
    keyed = [place for place in sent if names[place][1]]
    assert keyed == sorted(keyed), "which of two jobs with one key comes first decides which one is made"


@pytest.mark.usefixtures("still")
def test_many_tenants_make_few_ranges():
    stream = [call(number, f"t{number * 7919 % 1000}") for number in range(3 * WINDOW)]
    ranges = [len(segments(Batch(new_batch(), load.jobs))) for load in loads(stream)]
    assert len(ranges) == 24
    assert sum(ranges) < 0.2 * len(stream)


@pytest.mark.usefixtures("still")
def test_one_lane_is_not_kept_back():
    taken = 0

    def stream() -> Iterator[JobCall[None]]:
        nonlocal taken
        for taken in range(1, 5001):
            yield call(taken, "a" if taken <= 3000 else f"t{taken}")

    went = [(taken, len(load.calls)) for load in loads(stream())]
    assert went[:3] == [(1000, 1000), (2000, 1000), (3000, 1000)]
    assert went[3:] == [(5000, 1000), (5000, 1000)]


def test_nothing_waits_for_a_slow_stream(monkeypatch: pytest.MonkeyPatch):
    clock = 0.0
    monkeypatch.setattr("headrace.client.bulk.monotonic", lambda: clock)
    taken = 0

    def stream() -> Iterator[JobCall[None]]:
        nonlocal clock, taken
        for taken in range(1, 3001):
            clock += 0.001
            yield call(taken, f"t{taken % 500}")

    assert [taken for _ in loads(stream())] == [1000, 2000, 3000]


async def test_handles_of_a_stream_are_in_its_order():
    app = Headrace("memory://")

    @app.task
    async def say(number: int) -> int:
        return number

    async with app:
        handles = await app.aenqueue_many(say.using(tenant=f"t{n % 700}").job(n) for n in range(2 * WINDOW + 500))
        for place in (0, 1, 999, WINDOW, WINDOW + 700, 2 * WINDOW + 499):
            assert say.codec.decode((await handles[place].astatus()).payload) == ((place,), {})
        assert len({handle.id for handle in handles}) == 2 * WINDOW + 500


def sized(*lengths: int, tenants: int = 1) -> Iterator[JobCall[None]]:
    lanes = [Lane(tenant=f"t{number}") for number in range(tenants)]
    for number, length in enumerate(lengths):
        yield JobCall(NewJob("t", bytes(length), lanes[number % tenants]), NOTHING)


@pytest.mark.parametrize("tenants", [1, 3])
@pytest.mark.parametrize(
    "lengths",
    [
        [100_000] * 300,
        [10] * 1500 + [100_000] * 100,
        [CALL_BYTES + 1] * 3,
        [3, CALL_BYTES] * 4,
        [1900] * 2500,
        [5] * 20,
    ],
)
def test_a_call_of_the_store_is_bounded_by_bytes(lengths: list[int], tenants: int):
    found = list(loads(sized(*lengths, tenants=tenants)))
    assert sorted(place for load in found for place in load.places) == list(range(len(lengths)))
    for load in found:
        assert [len(call.job.payload) for call in load.calls] == [lengths[place] for place in load.places]
        assert 1 <= len(load.calls) <= CHUNK
        assert len(load.calls) == 1 or sum(len(job.payload) for job in load.jobs) <= CALL_BYTES
    for tenant in range(tenants):
        places = [place for load in found for place in load.places if place % tenants == tenant]
        assert places == sorted(places), "no job overtakes another of its lane"


@pytest.mark.parametrize("tenants", [1, 3])
def test_a_stream_of_large_jobs_is_not_kept_in_memory(tenants: int):
    made = 0

    def calls() -> Iterator[JobCall[None]]:
        nonlocal made
        for call in sized(*[200_000] * 2000, tenants=tenants):
            made += 1
            yield call

    sent = 0
    for load in loads(calls()):
        assert made - sent <= 3 * CALL_BYTES / 200_000
        sent += len(load.calls)
    assert sent == 2000
