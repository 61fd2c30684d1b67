"""Job ids: they say where their job is."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.model.gate import Needs, Wait, new_gate_id
from headrace.model.job import (
    MAX_BATCH,
    JobState,
    Key,
    NewJob,
    UniqueLock,
    job_id,
    new_batch,
    parse_id,
    split_id,
)
from headrace.model.lane import Lane
from headrace.task.links import waiting


def test_a_batch_is_a_uuid7_with_room_for_places():
    before = time.time_ns() // 1_000_000
    batch = new_batch()
    after = time.time_ns() // 1_000_000
    assert batch.version == 7
    assert batch.variant == "specified in RFC 4122"
    assert batch.int % MAX_BATCH == 0
    assert before <= batch.int >> 80 <= after


@given(st.integers(0, MAX_BATCH - 1))
def test_an_id_splits_into_batch_and_place(place):
    batch = new_batch()
    id = job_id(batch, place)
    assert split_id(id) == (batch, place)
    assert id.version == 7
    assert parse_id(str(id)) == id


def test_batches_differ_and_later_ones_sort_later():
    batches = [new_batch() for _ in range(1000)]
    assert len(set(batches)) == 1000
    times = [batch.int >> 80 for batch in batches]
    assert times == sorted(times)


def test_ids_keep_their_order_when_the_clock_goes_back_a_little(monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr("headrace.model.job.time.time_ns", lambda: now)
    first = new_batch()
    now -= 30 * 10**9
    assert new_batch().int >> 64 > first.int >> 64


def test_ids_follow_the_clock_back_from_years_ahead(monkeypatch):
    right = now = time.time_ns()
    monkeypatch.setattr("headrace.model.job.time.time_ns", lambda: now)
    now += 4 * 365 * 86_400 * 10**9
    new_batch()
    now = right
    assert new_batch().int >> 80 == right // 1_000_000


@pytest.mark.parametrize("text", ["", "1 OR 1=1", "x" * 10_000, "\x00", None, 7, b"01890a5d"])
def test_what_is_no_id_is_refused_in_short(text):
    with pytest.raises(ConfigError, match="is not a job id") as caught:
        parse_id(text)
    assert len(str(caught.value)) < 200


def test_uuids_pass():
    assert parse_id(UUID(int=7)) == UUID(int=7)


def test_three_states_are_final():
    assert {state for state in JobState if state.finished} == {JobState.DONE, JobState.DEAD, JobState.CANCELLED}


def test_a_job_that_is_made_to_wait_keeps_everything_else():
    own: dict[str, Any] = {
        "task": "pay",
        "payload": b"p",
        "lane": Lane("mail", 3, "acme", ("gpu",)),
        "due": timedelta(hours=1),
        "key": Key("k", timedelta(days=1), b"digest"),
        "options": b"o",
        "unique": UniqueLock("u", frozenset({JobState.READY})),
    }
    wait = Wait(new_gate_id(), Needs.ENDED)
    assert {*own, "wait"} == {field.name for field in msgspec.structs.fields(NewJob)}
    assert waiting(NewJob(**own), wait) == NewJob(**own, wait=wait)
