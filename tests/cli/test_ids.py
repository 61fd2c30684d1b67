"""Short ids: what they say, and how every store finds the job that one means."""

from __future__ import annotations

from uuid import UUID, uuid4

import click
import pytest

from conftest import STORES
from headrace.cli import ids
from headrace.cli.ids import expand
from headrace.errors import ConfigError, JobNotFound
from headrace.model.job import Batch, BatchId, JobId, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.short_id import ShortId, parse_short, shorten
from headrace.policy.schedule import slot_batch
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def enqueue(store: Store, batch: BatchId, count: int = 1) -> None:
    await store.enqueue(Batch(batch, [NewJob("shop.charge", b"\x92\x90\x80", Lane("mail"))] * count))


def short(id: JobId) -> ShortId:
    found = parse_short(shorten(id))
    assert found is not None
    return found


def test_a_short_id_has_12_characters_and_the_place() -> None:
    batch = new_batch()
    assert len(shorten(job_id(batch, 0))) == 12
    for place in (1, 17, 65_535):
        text = shorten(job_id(batch, place))
        assert text == f"{shorten(job_id(batch, 0))}.{place}"
        assert short(job_id(batch, place)).of(batch) == job_id(batch, place)
        assert short(job_id(batch, place)).within(batch)


def test_signs_that_look_alike_are_read_alike() -> None:
    text = shorten(job_id(BatchId(UUID("01890a5d-ac96-774b-bcce-b302099a0000")), 1))
    assert text == "64gmqdcjstby.1"
    found = parse_short(text)
    assert found is not None
    again = parse_short("64GMQDCJSTBY.1")
    assert again is not None
    assert again[1:] == found[1:]
    assert parse_short("o1il00000000") == parse_short("o1il00000000")
    zeros = parse_short("0111oooooooo")
    assert zeros is not None
    assert zeros.first == (parse_short("oill00000000") or zeros).first


def test_an_id_by_other_rules_stays_whole() -> None:
    other = JobId(uuid4())
    assert shorten(other) == str(other)
    assert ids.read(str(other)) == other


@pytest.mark.parametrize(
    "text", ["", "12", "64gmqdcjstb", "64gmqdcjstby.0", "64gmqdcjstby.65536", "64gmqdcjstbu", "☃" * 12]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a job id"):
        ids.read(text)


async def test_a_store_finds_the_job(store: Store) -> None:
    batches = [new_batch() for _ in range(5)]
    for batch in batches:
        await enqueue(store, batch, 3)
    for batch in batches:
        assert [await expand(store, short(job_id(batch, place))) for place in range(3)] == [
            job_id(batch, place) for place in range(3)
        ]


async def test_a_job_that_is_not_there(store: Store, clock: FakeClock) -> None:
    await enqueue(store, kept := new_batch())
    for missing in (job_id(new_batch(), 0), job_id(kept, 1)):
        with pytest.raises(JobNotFound, match="may have been pruned"):
            await expand(store, short(missing))


async def test_two_jobs_of_one_short_id_are_both_named(store: Store) -> None:
    first = new_batch()
    second = BatchId(UUID(int=first.int ^ 1 << 20))
    await enqueue(store, first)
    await enqueue(store, second, 2)
    assert shorten(job_id(first, 0)) == shorten(job_id(second, 0))
    with pytest.raises(click.UsageError, match="may mean 2 jobs") as error:
        await expand(store, short(job_id(first, 0)))
    assert str(first) in error.value.message
    assert str(second) in error.value.message
    # The second job of a call is of one of them.
    assert await expand(store, short(job_id(first, 1))) == job_id(second, 1)


def test_jobs_of_schedules_that_fire_at_once_differ(clock: FakeClock) -> None:
    made = {shorten(job_id(slot_batch(f"schedule-{number}", clock.now()), 0)) for number in range(100)}
    assert len(made) == 100
