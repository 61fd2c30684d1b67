"""The elements of a list, read from bytes that arrive in pieces of any size."""

from __future__ import annotations

import random

import hiredis
import pytest

from headrace.errors import ConfigError
from headrace.store.redis.client.bulks import Bulks
from headrace.store.redis.client.client import make_wire
from headrace.store.redis.client.url import parse
from servers.redis import RedisServer


def answer(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def arrive(bulks: Bulks, data: bytes, most: int) -> bool:
    """The bytes arrive in pieces of at most so many. Whether the list is complete."""
    done = False
    while data:
        room = bulks.room()
        assert len(room) > 0
        count = min(len(room), len(data), most)
        room[:count] = data[:count]
        data = data[count:]
        done = bulks.take(count)
    return done


@pytest.mark.parametrize("most", [1, 7, 1000, 100_000, 10_000_000])
def test_a_list_in_pieces(most: int):
    chance = random.Random(most)
    words = [chance.randbytes(chance.choice([0, 1, 50, 2000])) for _ in range(20)]
    words += [chance.randbytes(size) for size in (400_000, 10, 900_000, 300_000)] if most > 7 else []
    bulks = Bulks()
    for some in (words, [], words[::-1]):
        bulks.begin(bytes)
        assert arrive(bulks, answer(some), most)
        assert bulks.results == some


def test_an_answer_that_is_no_list_is_left_to_the_caller():
    bulks = Bulks()
    assert not arrive(bulks, b"-ERR no\r\n", 100)
    assert bulks.other == b"-ERR no\r\n"


@pytest.mark.parametrize(
    "wrong", [b"*x\r\n", b"*1\r\n:5\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$1\r\na\r\nmore", b"*" + b"1" * 50]
)
def test_what_is_no_list_of_bulk_strings_is_refused(wrong: bytes):
    with pytest.raises(hiredis.ProtocolError):
        arrive(Bulks(), wrong, 100)


async def test_lists_and_other_answers_on_one_connection(server: RedisServer):
    wire = make_wire(parse(server.url()))
    words = [bytes([number]) * 700_000 for number in range(5)]
    await wire.command("bulks", "RPUSH", "bulks", *words)
    for _ in range(3):
        assert await wire.elements("bulks", 1, 3, bytes) == words[1:4]
        assert await wire.command("bulks", "LLEN", "bulks") == 5
    assert await wire.elements("nothing", 0, -1, bytes) == []
    await wire.command("bulks", "SET", "bulks", "text")
    with pytest.raises(ConfigError, match="keys of another program"):
        await wire.elements("bulks", 0, -1, bytes)
    await wire.command("bulks", "DEL", "bulks")
    await wire.close()
