"""A store's own life: open, close, migrate, check, and its clock."""

from __future__ import annotations

from datetime import timedelta

from conformance.kit import dump, put
from headrace.store import connect
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


async def test_the_clock_is_the_one_injected(store: Store, clock: FakeClock):
    assert await store.now() == clock.now()
    clock.advance(timedelta(days=3))
    assert await store.now() == clock.now()


async def test_migrating_again_does_nothing(store: Store):
    await put(store, 3)
    before = await dump(store)
    assert await store.migrate() == []
    assert await dump(store) == before


async def test_check_has_something_clear_to_say(store: Store):
    findings = await store.check()
    assert findings
    assert {finding.level for finding in findings} <= {"ok", "warning", "error"}
    assert all(finding.about and finding.message for finding in findings)
    assert not [finding for finding in findings if finding.level == "error"]


async def test_close_may_be_called_twice(store_url: str):
    store = connect(store_url)
    await store.open()
    await store.close()
    await store.close()


async def test_a_store_never_opened_may_be_closed(store_url: str):
    await connect(store_url).close()


async def test_without_an_injected_clock_time_passes(real_store: Store):
    first = await real_store.now()
    assert first.tzinfo is not None
    while await real_store.now() <= first:
        pass
