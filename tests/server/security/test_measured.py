"""What is measured of refusals and polls can be measured; how it turns out is not a test's business."""

from __future__ import annotations

import random

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.http import polled, timing
from benchmarks.http.polled import Felt
from benchmarks.http.timing import Compared, welch

pytestmark = pytest.mark.timeout(600)  # on the slowest machine


def test_s30_welchs_test() -> None:
    # By hand: means 3 and 5, variances 2.5 and 2.5, five samples each, so t = 2 / 1.
    assert welch([1, 2, 3, 4, 5], [3, 4, 5, 6, 7]) == pytest.approx(0.0455, abs=0.0001)
    assert welch([1, 1, 1], [1, 1, 1]) == 1
    assert welch([1, 1, 1], [2, 2, 2]) == 0
    chance = random.Random(7)
    one, other = ([chance.gauss(100, 10) for _ in range(5000)] for _ in range(2))
    assert welch(one, other) > 0.01
    assert welch(one, [each + 1 for each in other]) < 0.01


def test_s30_s32_refusals_are_compared() -> None:
    done = CliRunner().invoke(timing.main, ["--requests", "20", "--json"])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.stdout, type=list[Compared])
    assert [(each.one, each.other) for each in found] == [
        ("first byte of the secret wrong", "last byte of the secret wrong"),
        ("last byte of the secret wrong", "an id that no token has"),
        ("a job of another tenant", "a job that is not there"),
    ]
    for each in found:
        assert each.requests == 20
        assert each.one_us > 0
        assert each.other_us > 0
        assert 0 <= each.p <= 1


@pytest.mark.parametrize("more", [[], ["--direct"]], ids=["http", "direct"])
def test_s53_claims_under_polls_are_measured(more: list[str]) -> None:
    done = CliRunner().invoke(polled.main, ["--claims", "50", "--turns", "2", "--rate", "200", "--json", *more])
    assert done.exit_code == 0, done.output
    some, none = msgspec.json.decode(done.stdout, type=list[Felt])
    for each in (some, none):
        assert (each.claims, each.turns) == (50, 2)
        assert each.polls_per_s > 0
        assert 0 < each.alone_p50_ms <= each.alone_p99_ms
        assert each.p99_over_beside > 0
    assert none.refused_percent == 0


def test_they_are_shown_to_people() -> None:
    told = CliRunner().invoke(timing.main, ["--requests", "10"])
    assert told.exit_code == 0, told.output
    assert "10 of each, medians" in told.stdout
    told = CliRunner().invoke(polled.main, ["--claims", "20", "--turns", "1"])
    assert told.exit_code == 0, told.output
    assert "reads a second" in told.stdout
