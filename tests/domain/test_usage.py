"""Usage: seconds add up in any order, small tenants lose their name and not their seconds, and folding loses nothing."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.model.histogram import EMPTY
from headrace.model.rollup import ALL_QUEUES, DAY, HOUR, USAGE_FROM, Rollup, usage_rollup
from headrace.model.usage import MOST_TENANTS, Usage
from headrace.policy.history import FOLD_AFTER, merged_usage, plan_usage_fold
from headrace.store.memory import MemoryStore
from headrace.testing.clock import FakeClock
from headrace.worker.history import HistoryUpkeep

MINUTE_NOW = 29_454_480
NOW = MINUTE_NOW * 60.0


def test_a_packed_usage_comes_back() -> None:
    usage = Usage({"acme": 1.5, "": 0.25}, busy=3.0, available=80.0)
    again = Usage.unpack(usage.pack())
    assert (again.tenants, again.other, again.busy, again.available) == ({"acme": 1.5, "": 0.25}, 0.0, 3.0, 80.0)
    assert again.seconds == 1.75


def test_tenants_beyond_the_most_count_together() -> None:
    usage = Usage({f"t{number:03}": float(number) for number in range(MOST_TENANTS + 20)})
    again = Usage.unpack(usage.pack())
    assert len(again.tenants) == MOST_TENANTS
    assert min(again.tenants.values()) == 20.0
    assert again.other == sum(range(20))
    assert again.seconds == usage.seconds


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**9)), max_size=8))
def test_seconds_add_up(parts: list[dict[str, int]]) -> None:
    whole = Usage()
    for part in parts:
        whole.merge(Usage.unpack(Usage({tenant: micros / 1e6 for tenant, micros in part.items()}).pack()))
    assert whole.seconds == pytest.approx(sum(sum(part.values()) for part in parts) / 1e6)


@pytest.mark.parametrize("packed", [b"", EMPTY, b"\x02", b"\x02\x90", b"\x02\x94\xff\x00\x00\x80"])
def test_other_bytes_are_no_usage(packed: bytes) -> None:
    with pytest.raises(ValueError, match="usage"):
        Usage.unpack(packed)


def rollup(ago: int, tenants: dict[str, float], *, queue: str = "q", span: int = HOUR) -> Rollup:
    packed = Usage(tenants, busy=1.0, available=10.0).pack()
    return usage_rollup(packed, minute=MINUTE_NOW - ago, span=span, queue=queue, sent=int(NOW - FOLD_AFTER))


def test_usages_of_one_hour_and_queue_become_one() -> None:
    page = [rollup(0, {"a": 1.0}), rollup(0, {"a": 2.0, "b": 3.0}), rollup(0, {}, queue=ALL_QUEUES), rollup(HOUR, {})]
    fold = plan_usage_fold(page, NOW)
    assert fold is not None
    assert fold.gone == [one.key for one in page[:2]]
    [whole] = fold.rollups
    assert (whole.start, whole.span, whole.queue) == (USAGE_FROM + MINUTE_NOW, HOUR, "q")
    assert Usage.unpack(whole.run).tenants == {"a": 3.0, "b": 3.0}
    assert plan_usage_fold([whole, *page[2:]], NOW) is None


def test_a_usage_of_a_newer_version_stays_as_it_is() -> None:
    assert plan_usage_fold([replace(rollup(0, {}), run=b"\x63"), rollup(0, {})], NOW) is None


async def test_upkeep_folds_hours_of_usage_into_days_and_drops_what_is_old() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    upkeep = HistoryUpkeep(store, timedelta(days=30))
    now = int(clock.now().timestamp())

    def usage(hour: int) -> Rollup:
        packed = Usage({"a": 1.0, "b": 2.0}, busy=3.0, available=9.0).pack()
        return replace(usage_rollup(packed, minute=now // 60 + HOUR * hour, span=HOUR, queue="q"), sent=now)

    async def tidied() -> list[Rollup]:
        while await upkeep.tidy() <= 1.0:
            pass
        return (await store.read_history(0, 2**31 - 1)).rollups

    rollups = [usage(hour) for hour in (0, 0, 1, 2)]
    await store.add_history([*rollups, replace(rollups[0], id=uuid4())])
    clock.advance(timedelta(seconds=FOLD_AFTER))
    assert len(await tidied()) == 3
    clock.advance(timedelta(days=8))
    assert len(await tidied()) == 3
    clock.advance(timedelta(days=1))
    [day] = await tidied()
    assert (day.span, day.start % DAY) == (DAY, 0)
    merged = merged_usage([day])
    assert (merged.tenants, merged.busy, merged.available) == ({"a": 5.0, "b": 10.0}, 15.0, 45.0)
    clock.advance(timedelta(days=24))
    assert await tidied() == []
