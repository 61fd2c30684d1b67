"""Jobs of one call that share a lane wait as one range, wherever they stood in the call."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Headrace
from headrace.client import gather
from headrace.job import Batch, Key, NewJob, new_batch
from headrace.lane import Lane
from headrace.store.contract import segments

tenants = st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40)


def jobs(names: list[str], key: Key | None = None) -> list[NewJob]:
    # Each with a lane of its own that equals others: identity must not matter.
    return [NewJob("t", b"%d" % number, Lane(tenant=name), key=key) for number, name in enumerate(names)]


@given(tenants)
@settings(max_examples=200, derandomize=True, database=None)
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
