"""A job as bytes: however its neighbours in a claim look, each comes out as if it were alone."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from headrace.model.job import NewJob, new_batch
from headrace.model.lane import Lane
from headrace.store.redis.element import Decoder, encode_run, lane_name, to_us

AT = datetime(2026, 1, 1, tzinfo=UTC)


def alternatives() -> list[bytes]:
    """Elements of one lane that differ in one thing or another."""
    found: list[bytes] = []
    lane = Lane("q", 3, "acme")
    for later in (0, 1):
        batch, at = new_batch().bytes[:14], to_us(AT + timedelta(microseconds=later))
        jobs = [
            NewJob("t", b"one", lane),
            NewJob("t", b"", lane),
            NewJob("t", b"other", lane),
            NewJob("t2", b"one", lane),
            NewJob("t", b"one", lane, options=b"\x81\xa1x\x01"),
            NewJob("t", b"one", lane, options=b""),
            NewJob("t", b"t" * 300, lane),
        ]
        found += encode_run(batch, jobs, 0, len(jobs) - 1, at)
        limited = Lane("q", 3, "acme", ("key:a", "b@2"))
        found += encode_run(batch, [NewJob("t", b"one", limited), NewJob("t", b"two", limited, options=b"o")], 0, 1, at)
    # The same after some attempts, failures and crashes, and as a suspect.
    first = found[0]
    return [*found, *(first[:at] + b"\1" + first[at + 1 :] for at in (19, 21, 23, 24)), found[-1]]


def test_neighbours_do_not_rub_off():
    elements = alternatives()
    for seed in range(300):
        some = random.Random(seed).choices(elements, k=12)
        alone = [Decoder().run([element], "q", "3|acme|")[0] for element in some]
        assert Decoder().run(some, "q", "3|acme|") == alone


def test_what_neighbours_share_is_made_once():
    lane, batch = Lane("q"), new_batch()
    jobs = [NewJob("t", b"%d" % number, lane) for number in range(1000)]
    elements = encode_run(batch.bytes[:14], jobs, 0, 999, to_us(AT))
    found = Decoder().run(elements, "q", lane_name(lane))
    assert [(job.ord, job.payload, job.attempt) for job in found] == [(at, b"%d" % at, 1) for at in range(1000)]
    assert {id(job.batch) for job in found} == {id(found[0].batch)}
    assert {id(job.enqueued_at) for job in found} == {id(found[0].enqueued_at)}
    assert found[0].enqueued_at == AT


def test_what_jobs_of_several_claims_share_is_made_once():
    """As the jobs of many chains, of which each claim has one."""
    lane, decoder, calls = Lane("q"), Decoder(), [new_batch() for _ in range(100)]
    claims = [
        [
            encode_run(call.bytes[:14], [NewJob("t", b"", lane)], 0, 0, to_us(AT) + number)[0]
            for number, call in enumerate(calls)
        ]
        for _ in range(2)
    ]
    first, second = [decoder.run(elements, "q", lane_name(lane)) for elements in claims]
    assert [job.batch for job in first] == calls
    assert all(
        one.batch is two.batch and one.enqueued_at is two.enqueued_at for one, two in zip(first, second, strict=True)
    )


def test_a_decoder_keeps_a_bounded_number_of_values():
    decoder = Decoder()
    for number in range(5000):
        [job] = decoder.run(
            encode_run(new_batch().bytes[:14], [NewJob("t", b"", Lane("q"))], 0, 0, number + 1), "q", "0||"
        )
        assert job.enqueued_at.microsecond == number + 1
    assert len(decoder._batches) <= 2000
    assert len(decoder._times) <= 2000
