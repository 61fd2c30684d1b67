"""What people see of a job gives no secret away."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace import portrait
from headrace.codec import JobOptions, encode_options
from headrace.job import Job, JobId, JobState, job_id, new_batch


def job(options: bytes | None) -> Job:
    return Job(
        id=JobId(job_id(new_batch(), 0)),
        task="t",
        queue="default",
        priority=0,
        tenant="",
        limits=(),
        state=JobState.READY,
        attempt=0,
        failures=0,
        crashes=0,
        enqueued_at=datetime.now(UTC),
        payload=b"\x92\x90\x80",
        options=options,
    )


def test_of_a_webhook_only_its_host_is_shown():
    options = JobOptions(timeout=3, webhook="https://user:pass@hooks.example.com/secret-path?token=hush")
    shown = portrait.options(job(encode_options(options)))
    assert shown == {"timeout": 3, "webhook": "…//hooks.example.com/…"}


def test_options_that_cannot_be_read_say_so():
    assert portrait.options(job(b"\xff\xff")) == {"unreadable": "2 bytes"}
    assert portrait.options(job(None)) == {}
