"""How many jobs a claim asks for."""

from __future__ import annotations

from headrace.model.lease import LEASE_BYTES, MAX_LEASE
from headrace.store.claim_size import LARGE, ClaimSize


def test_the_first_claim_is_careful_and_asks_for_all():
    size = ClaimSize()
    assert (size.careful, size.limit(500)) == (True, 500)


def test_claims_of_small_jobs_are_not_careful():
    size = ClaimSize()
    size.learn(500, 0)
    assert (size.careful, size.limit(500)) == (False, 500)


def test_after_large_jobs_a_claim_asks_for_what_fits():
    size = ClaimSize()
    size.learn(10, 10 * 100_000)
    assert size.careful
    assert 0.5 * LEASE_BYTES < size.limit(500) * 100_000 < LEASE_BYTES


def test_where_payloads_are_alike_a_claim_asks_for_all_that_fit():
    size = ClaimSize()
    for _ in range(4):
        size.learn(10, 10 * 100_000)
    assert 0.95 * LEASE_BYTES < size.limit(500) * 100_000 <= LEASE_BYTES


def test_where_payloads_differ_a_claim_leaves_room():
    size = ClaimSize()
    for average in (100_000, 130_000, 100_000, 130_000):
        size.learn(10, 10 * average)
    assert size.limit(500) * 130_000 < 0.85 * LEASE_BYTES


def test_a_claim_asks_for_one_job_at_least():
    size = ClaimSize()
    size.learn(1, 50 * LEASE_BYTES)
    assert size.limit(500) == 1


def test_when_large_jobs_have_gone_claims_ask_for_all_again():
    size = ClaimSize()
    size.learn(10, LEASE_BYTES)
    claims = 0
    while size.limit(500) < 500:
        size.learn(size.limit(500), 0)
        claims += 1
    assert claims < 20
    while size.careful:
        size.learn(500, 0)
        claims += 1
    assert claims <= 100


def test_payloads_that_are_not_large_always_fit():
    assert LARGE * MAX_LEASE < LEASE_BYTES
