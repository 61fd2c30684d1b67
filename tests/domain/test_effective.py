"""The options that hold for a job: its own before its task's, and its task's before the defaults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any
from uuid import UUID

import msgspec
import pytest

from headrace.model.job import Claimed, Failure, JobState
from headrace.model.outcome import Again, Failed, Finish, Released, Succeeded
from headrace.policy.effective import DEFAULTS, Effective, effective, only_marks, settlement, usual
from headrace.task.codec import JobOptions, encode_options
from headrace.task.retry import Retry
from headrace.task.task_options import TaskOptions

NOW = datetime(2026, 11, 15, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TASK = usual(
    TaskOptions(
        retry=Retry(max_attempts=3, max_crashes=2, never=(KeyError,)),
        timeout=2 * MINUTE,
        expires=10 * MINUTE,
        deadline=60 * MINUTE,
        result_ttl=timedelta(days=1),
        redact=("card",),
    )
)
FAILED = Failed(Failure(1, "Error", "", "", NOW))


def job(options: bytes | None = None, *, failures: int = 0) -> Claimed:
    return Claimed(UUID(int=1), 0, 1, failures, 0, "task", b"", options, "default", 0, "", NOW)


def own(**options: Any) -> Claimed:
    return job(encode_options(JobOptions(**options)))


def clock(at: datetime = NOW) -> Any:
    return at.timestamp


def broken_clock() -> float:
    raise AssertionError("the clock of a job without a deadline is read")


def test_a_job_without_options_of_its_own_shares_the_object_of_its_task() -> None:
    assert effective(job(), TASK) is TASK
    assert effective(job()) is DEFAULTS
    assert usual(None) is DEFAULTS


def test_jobs_with_the_same_options_share_one_object() -> None:
    assert effective(own(timeout=5.0), TASK) is effective(own(timeout=5.0), TASK)
    assert effective(own(timeout=5.0), TASK) is not effective(own(timeout=5.0))


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"timeout": 5.0}, {"timeout": 5.0}),
        ({"max_attempts": 8}, {"retry": Retry(max_attempts=8, max_crashes=2, never=(KeyError,))}),
        ({"result_ttl": 0.0}, {"result_ttl": timedelta(0)}),
        ({"expires": 0.0}, {"expires": timedelta(0)}),
        ({"expires": NOW}, {"expires": NOW}),
        ({"deadline": 90.0}, {"deadline": timedelta(seconds=90)}),
        ({"redact": ("card", "code"), "names": ("", "code")}, {"redact": ("card", "code"), "names": ("", "code")}),
        ({"by": "billing-api", "key": "k", "tenant": "acme", "webhook": "https://example.com"}, {}),
    ],
)
def test_an_option_of_the_job_replaces_that_of_its_task_and_no_other(
    options: dict[str, Any], changed: dict[str, Any]
) -> None:
    found = effective(own(**options), TASK)
    assert msgspec.structs.asdict(found) == msgspec.structs.asdict(TASK) | changed


def test_options_that_cannot_be_read_count_as_none() -> None:
    found = effective(job(b"\xc1"), TASK)
    assert msgspec.structs.asdict(found) == msgspec.structs.asdict(TASK)


@pytest.mark.parametrize(
    ("options", "marks"),
    [
        ({"trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}, True),
        ({"by": "website", "key": "order-1"}, True),
        ({"trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "timeout": 5.0}, False),
        ({"max_attempts": 3}, False),
        ({"result_ttl": 60.0}, False),
        ({"expires": 60.0}, False),
        ({"deadline": 60.0}, False),
        ({"webhook": "https://example.com/"}, False),
        ({"redact": ("card",)}, False),
    ],
)
def test_options_that_only_say_where_a_job_comes_from(options: dict[str, Any], marks: bool) -> None:
    data = encode_options(JobOptions(**options))
    assert data is not None
    assert only_marks(data) is marks


def test_options_that_cannot_be_read_are_more_than_marks() -> None:
    # The worker decodes them with the arguments, and makes the job dead.
    assert not only_marks(b"\xff")


@pytest.mark.parametrize(("given", "holds"), [(-5, 1), (0, 1), (10**9, 1000)])
def test_a_number_of_attempts_that_another_program_wrote_is_brought_into_range(given: int, holds: int) -> None:
    assert effective(own(max_attempts=given)).retry.max_attempts == holds


@pytest.mark.parametrize(("given", "holds"), [(-1.0, 0), (nan, 0), (inf, 3650), (1e300, 3650)])
def test_a_length_of_time_that_another_program_wrote_is_brought_into_range(given: float, holds: int) -> None:
    assert effective(own(result_ttl=given)).result_ttl == timedelta(days=holds)


def test_times_are_counted_from_the_enqueue() -> None:
    assert (TASK.expires_at(job()), TASK.deadline_at(job())) == (NOW + 10 * MINUTE, NOW + 60 * MINUTE)
    assert (DEFAULTS.expires_at(job()), DEFAULTS.deadline_at(job())) == (None, None)
    later = NOW + timedelta(days=9)
    assert Effective(deadline=later).deadline_at(job()) == later
    at = (NOW + 15 * MINUTE).timestamp()
    assert (TASK.startable(job(), at), TASK.left(job(), at)) == (-300, 2700)
    assert (DEFAULTS.startable(job(), at), DEFAULTS.left(job(), at)) == (inf, inf)


def test_only_limits_in_time_need_the_clock() -> None:
    assert TASK.timed
    assert not DEFAULTS.timed
    assert effective(own(deadline=1.0)).timed
    assert not effective(own(timeout=1.0)).timed
    assert settlement(job(), Succeeded(), DEFAULTS, broken_clock).state is JobState.DONE  # type: ignore[union-attr]


def test_the_retry_rule_is_asked_with_what_holds() -> None:
    once = own(max_attempts=1)
    ended = settlement(once, FAILED, effective(once, TASK), clock())
    assert isinstance(ended, Finish)
    assert (ended.state, ended.note) == (JobState.DEAD, "max_attempts")
    assert isinstance(settlement(job(), FAILED, TASK, clock()), Again)
    late = settlement(job(), FAILED, TASK, clock(NOW + 60 * MINUTE))
    assert isinstance(late, Finish)
    assert late.note == "deadline"
    kept = settlement(job(), Succeeded(b"x"), TASK, clock())
    assert isinstance(kept, Finish)
    assert kept.result_ttl == timedelta(days=1)


def test_a_suspect_that_is_handed_back_stays_one() -> None:
    back = settlement(job(), Released(), DEFAULTS, clock(), suspect=True)
    assert isinstance(back, Again)
    assert back.suspect
