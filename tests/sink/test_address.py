"""The setting history_url: what it names, what is refused, and that its password is shown nowhere."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.settings import Settings
from headrace.sink.address import parse


@pytest.mark.parametrize(
    ("url", "shown", "user"),
    [
        ("clickhouse://ch.example", "ch.example:8123/default.headrace_ends", "default"),
        ("clickhouses://ch.example/", "ch.example:8443/default.headrace_ends", "default"),
        ("clickhouse://writer:pa%40ss@[::1]:9000/shop?table=ends", "[::1]:9000/shop.ends", "writer"),
    ],
)
def test_addresses(url: str, shown: str, user: str):
    address = parse(url)
    assert (address.shown, address.user) == (shown, user)
    assert address.tls is url.startswith("clickhouses")


def test_a_password_is_decoded_and_not_shown():
    settings = Settings(history_url="clickhouse://writer:pa%40ss@ch.example/shop")
    address = parse(settings.history_url)
    assert address.password == "pa@ss"
    assert "pa@ss" not in repr(address)
    shown = {origin.name: origin.value for origin in settings.explain()}["history_url"]
    assert shown == "clickhouse://writer:•••@ch.example/shop"
    assert "pa%40ss" not in repr(settings.replace(history_url=settings.history_url))


@pytest.mark.parametrize(
    "url",
    [
        "http://writer:pa-ss@ch.example",
        "clickhouse://writer:pa-ss@",
        "clickhouse://writer:pa-ss@ch.example:port",
        "clickhouse://writer:pa-ss@ch.example/two/parts",
        "clickhouse://writer:pa-ss@ch.example/shop?table=a;drop",
        "clickhouse://writer:pa?pa-ss=1@ch.example/shop",
        "clickhouse://wri%3Ater:pa-ss@ch.example/shop",
        "clickhouse://[writer:pa-ss@ch.example/shop",
    ],
)
def test_refused_addresses_do_not_show_the_password(url: str):
    with pytest.raises(ConfigError, match="history_url") as refused:
        Settings(history_url=url)
    assert "pa-ss" not in str(refused.value)


def test_no_address_is_the_default():
    assert Settings().history_url == ""
    with pytest.raises(ConfigError, match="is not text"):
        Settings(history_url=7)  # type: ignore[arg-type]
