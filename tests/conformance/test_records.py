"""Records: small named values, changed by compare-and-set."""

from __future__ import annotations

import asyncio

from headrace.store.contract import Store


async def write(store: Store, name: str, value: bytes | None, expect: int | None, *, kind: str = "k") -> int:
    version = await store.record(kind, name, value, expect)
    assert version is not None
    return version


async def test_there_are_none_at_first(store: Store):
    assert await store.records("k") == {}


async def test_a_record_is_kept_as_it_was_written(store: Store):
    values = {"a": b"", "b": bytes(range(256)), "c": b"x" * 100_000}
    versions = {name: await write(store, name, value, None) for name, value in values.items()}
    found = await store.records("k")
    assert {name: record.value for name, record in found.items()} == values
    assert {name: record.version for name, record in found.items()} == versions


async def test_only_what_was_seen_can_be_replaced(store: Store):
    first = await write(store, "a", b"1", None)
    assert await store.record("k", "a", b"other", None) is None
    second = await write(store, "a", b"2", first)
    assert await store.record("k", "a", b"other", first) is None
    assert await store.record("k", "b", b"other", second) is None
    [record] = (await store.records("k")).values()
    assert (record.value, record.version) == (b"2", second)


async def test_only_what_was_seen_can_be_deleted(store: Store):
    first = await write(store, "a", b"1", None)
    second = await write(store, "a", b"2", first)
    assert await store.record("k", "a", None, first) is None
    assert await store.record("k", "a", None, None) is None
    assert await store.record("k", "a", None, second) == 0
    assert await store.records("k") == {}
    assert await store.record("k", "a", None, second) is None
    assert await store.record("k", "a", None, None) == 0


async def test_a_version_is_never_used_again(store: Store):
    seen: set[int] = set()
    for _ in range(3):
        version = await write(store, "a", b"same", None)
        again = await write(store, "a", b"same", version)
        assert not {version, again} & seen
        seen |= {version, again}
        await write(store, "a", None, again)
        assert await store.record("k", "a", b"late", again) is None
    assert await store.records("k") == {}


async def test_kinds_are_apart(store: Store):
    one = await write(store, "a", b"1", None, kind="one")
    await write(store, "a", b"2", None, kind="two")
    assert [record.value for record in (await store.records("one")).values()] == [b"1"]
    assert await store.record("two", "a", None, one) is None
    assert await store.record("one", "a", None, one) == 0
    assert [record.value for record in (await store.records("two")).values()] == [b"2"]


async def test_of_many_at_once_one_wins(store: Store):
    made = await asyncio.gather(*(store.record("k", "a", b"%d" % n, None) for n in range(10)))
    assert sum(version is not None for version in made) == 1
    version = (await store.records("k"))["a"].version
    for _ in range(5):
        answers = await asyncio.gather(*(store.record("k", "a", b"%d" % n, version) for n in range(10)))
        [(winner, version)] = [(n, answer) for n, answer in enumerate(answers) if answer is not None]
        assert (await store.records("k"))["a"].value == b"%d" % winner
