"""What a URL of Redis says, and what is said about one that is wrong: never a part of its password."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.store import REDIS_SCHEMES, connect
from headrace.store.redis.client.url import SCHEMES, parse


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/db",
        "redis://h:1/0/1",
        "redis://h:99999",
        "redis://h:0",
        "redis://h:port",
        "redis://a,b",
        "redis://h?durability=maybe",
        "redis://h?replicas=-1",
        "redis://h?prefix={x}",
        "redis://h?nonsense=1",
        "redis+cluster://h/3",
        "redis+sentinel://h",
        "redis://[::1",
    ],
)
def test_bad_urls(url: str):
    with pytest.raises(ConfigError) as caught:
        parse(url.replace("//", "//user:s3cret@"))
    assert "s3cret" not in str(caught.value)


def test_good_urls():
    one = parse("rediss://ada:p%40ss@h:7/2?prefix=app&durability=strict&replicas=1")
    assert (one.hosts, one.tls, one.db, one.username, one.password) == ((("h", 7),), True, 2, "ada", "p@ss")
    assert (one.prefix, one.strict, one.replicas) == ("app", True, 1)
    assert "p@ss" not in repr(one)
    assert parse("valkey://").hosts == (("127.0.0.1", 6379),)
    many = parse("redis+cluster://a:1,b:2,[::1]:3")
    assert (many.kind, many.hosts) == ("cluster", (("a", 1), ("b", 2), ("::1", 3)))
    sentinel = parse("redis+sentinel://a,b:5/mymaster/1")
    assert (sentinel.kind, sentinel.service, sentinel.db, sentinel.hosts) == (
        "sentinel",
        "mymaster",
        1,
        (("a", 26379), ("b", 5)),
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://default:12/s3cret@host:6379/0",
        "redis://default:12/s3/cret@host:6379/0",
        "redis://default:12//s3cret@host:6379/0",
        "redis://default:123?s3cret@host/0",
        "redis://default:123?s3cret=1@host/0",
        "redis://default:123?prefix=s3cret@host/0",
        "redis://default:123?timeout=s3cret@host/0",
        "redis://default:123?durability=s3cret@host/0",
        "redis://default:123?shards=s3cret@host/0",
        "redis://default:123#s3cret@host/0",
        "redis://default:s3cret#@host/0",
        "redis://default:s3cret/@host/0",
        "redis://default:s3cret?@host/0",
        "redis://default:[s3cret@host/0",
        "redis+cluster://default:12/s3cret@host",
        "redis+sentinel://default:12/s3cret@host/mymaster",
        "redis+sentinel://default:12?sentinel_password=s3cret",
    ],
)
def test_a_password_with_signs_that_were_not_escaped_is_not_shown(url: str):
    with pytest.raises(ConfigError) as caught:
        parse(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3" not in str(error)
        assert "cret" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_neither_password_nor_user_is_in_what_python_shows():
    assert "s3cret" not in repr(parse("redis://s3cret@host"))
    assert "s3cret" not in repr(parse("redis://:s3cret@host"))
    assert "s3cret" not in repr(parse("redis+sentinel://h/mymaster?sentinel_password=s3cret"))
    assert "s3cret" not in repr(parse("redis://a:p%23s3cret@host"))


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("redis://h/0?tls_ca=/x", "rediss://"),
        ("redis://h/0?tls_cert=/x&tls_key=/y", "rediss://"),
        ("valkey+cluster://h?tls_key=/x", "rediss://"),
        ("rediss://h/0?tls_key=/x", "tls_cert"),
        ("redis://h?sentinel_password=x", r"redis\+sentinel://"),
        ("redis+cluster://h?sentinel_password=x", r"redis\+sentinel://"),
        ("redis://h/\u00b9", "database number"),
        ("redis://h/0?timeout=\u00b2", "whole number"),
        ("redis://h/0?replicas=99999999999", "whole number"),
    ],
)
def test_what_would_be_ignored_is_refused(url: str, way_out: str):
    with pytest.raises(ConfigError, match=way_out):
        parse(url)


@pytest.mark.parametrize(
    "url", [":s3cret@host/0", "//user:s3cret@host", "redis//:s3cret@host", "default:1/s3cret@host"]
)
def test_a_url_without_a_scheme_is_not_shown_either(url: str):
    with pytest.raises(ConfigError, match="no store for") as caught:
        connect(url)
    assert "s3cret" not in str(caught.value)


def test_every_scheme_is_known_where_stores_are_chosen():
    assert SCHEMES == REDIS_SCHEMES
