"""Lanes and names: which are accepted, and what makes two lanes one."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.model.lane import Lane, check_key, check_priority, check_queue, check_task_name, check_tenant

METACHARACTERS = [
    "*",
    ">",
    "$JS.API",
    "a b",
    "{x}",
    "a:b",
    "jobs\r\nDEL x",
    "Ünïcode",
    "",
    'x"; DROP TABLE jobs;--',
    "a\x00",
]


@pytest.mark.parametrize("name", ["default", "billing", "a", "0", "a.b-c_d", "x" * 63])
def test_queue_names(name):
    assert check_queue(name) == name


@pytest.mark.parametrize("name", [*METACHARACTERS, "Billing", "-a", ".a", "_a", "x" * 64, "a\n", None, 7])
def test_bad_queue_names(name):
    with pytest.raises(ConfigError, match="is not a valid queue name"):
        check_queue(name)


@pytest.mark.parametrize("name", ["app.tasks.Charge", "_private", "a", "x" * 128])
def test_task_names(name):
    assert check_task_name(name) == name


@pytest.mark.parametrize("name", [*METACHARACTERS, ".a", "-a", "x" * 129, "a.<locals>.b", "a\u2028b", "a\x1b[2J"])
def test_bad_task_names(name):
    with pytest.raises(ConfigError, match="is not a valid task name"):
        check_task_name(name)


@pytest.mark.parametrize("name", ["", "acme", "Acme/eu:1", "x" * 128])
def test_tenants(name):
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", ["a b", "a\n", "é", "x" * 129, "\x7f", None, 7])
def test_bad_tenants(name):
    with pytest.raises(ConfigError, match="is not a valid tenant"):
        check_tenant(name)


@pytest.mark.parametrize("value", [-1000, 0, 1000])
def test_priorities(value):
    assert check_priority(value) == value


@pytest.mark.parametrize("value", [-1001, 1001, True, 1.0, "1", None, float("nan")])
def test_bad_priorities(value):
    with pytest.raises(ConfigError, match="from -1000 to 1000"):
        check_priority(value)


@pytest.mark.parametrize("key", ["order-7", "ключ", "x" * 256, "with space"])
def test_keys(key):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 257, "a\x00", "a\n", "\ud800", None, 7])
def test_bad_keys(key):
    with pytest.raises(ConfigError, match="printable"):
        check_key(key)


def test_a_lane_without_limits_has_id_0():
    assert Lane("a", 5, "t").id == 0


def test_limit_keys_make_the_id_and_their_order_counts():
    one = Lane("a", 0, "", ("shop:acme", "stripe"))
    assert one.id == Lane("b", 1, "t", ("shop:acme", "stripe")).id != 0
    assert one.id != Lane("a", 0, "", ("stripe", "shop:acme")).id
    assert one.id != Lane("a", 0, "", ("shop:acme stripe",)).id
    assert -(2**63) <= one.id < 2**63
