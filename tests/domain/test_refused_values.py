"""Values and sizes that an enqueue refuses before it has asked the store for anything, whichever store that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from headrace import Headrace, PayloadTooLarge, SerializationError
from headrace.model.records import Filter
from headrace.store.contract import Store


@dataclass
class Box:
    x: Any


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "valkey", "http"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(url: str) -> tuple[Headrace, Any]:
    app = Headrace(url)

    @app.task(name="take")
    async def take(value: Any = None) -> Any:
        return value

    return app, take


async def stored(store: Store) -> int:
    return len((await store.find(Filter())).jobs)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "args[0]"),
        (Box(object()), "args[0].x"),
        ([{"x": object()}], "args[0][0]['x']"),
        (lambda: None, "args[0]"),
        (circular(), "args[0][0]"),
        ({1, 2}, "args[0]"),
        (float("nan"), "args[0]"),
        ("\ud800", "args[0]"),
        (Exception("x"), "args[0]"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_s12_what_cannot_be_stored_is_named_before_a_write(
    store_url: str, value: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, take = make(store_url)

    def unasked() -> Store:
        raise AssertionError("a store was asked for")

    monkeypatch.setattr(app, "connect", unasked)
    with pytest.raises(SerializationError) as caught:
        await take.aenqueue(value)
    assert caught.value.path == path
    with pytest.raises(SerializationError):
        take.enqueue(value)


@pytest.mark.parametrize("value", [{1: 2}, b"", b"\0\xff", {"": [None]}, 2**64 - 1, -(2**63)], ids=repr)
@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_s12_what_messagepack_can_say_arrives_as_it_was(store_url: str, value: Any) -> None:
    _, take = make(store_url)
    [[found], _] = take.codec.decode(take.job(value).job.payload)
    assert found == value
    assert type(found) is type(value)


async def test_s13_a_payload_has_its_limit_on_every_store(store_url: str, real_store: Store) -> None:
    app, take = make(store_url)
    limit = 256 * 1024
    most = "x" * (limit - 8)  # [[text], {}] in MessagePack: three bytes around a text, which has five of its own
    try:
        with pytest.raises(PayloadTooLarge) as caught:
            await take.aenqueue(most + "x")
        assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
        assert await stored(real_store) == 0
        if store_url != "memory://":  # which is each app's own
            await take.aenqueue(most)
            [job] = (await real_store.find(Filter())).jobs
            [whole] = await real_store.get([job.id])
            assert whole is not None
            assert len(whole.payload) == limit
    finally:
        await app.aclose()
