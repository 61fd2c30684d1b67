"""Candidates: the tenants or lanes that wait for a turn, each with its first ranges."""

from __future__ import annotations

from typing import Any

import msgspec

Range = tuple[int, int, int, int, int, int]
"""lo, hi, attempt, failures, crashes, suspect"""

_decode = msgspec.json.Decoder(
    list[tuple[str, int, list[tuple[int, int, int, int, int, int, int]]]],
).decode
_texts = msgspec.json.Decoder(list[str]).decode
_numbers = msgspec.json.Decoder(list[int]).decode
_maybe_texts = msgspec.json.Decoder(list[str | None]).decode


class Candidate(msgspec.Struct, gc=False):
    """A tenant or a lane that takes turns, as it is when its turn comes."""

    tenant: str
    lane: int
    """The first one, if it is a tenant."""
    ranges: list[Range]
    """Of that lane, from its head on."""
    follows: str | None = None
    """The tenant right before it in the line."""
    jobs: int = 0
    """In these ranges."""
    complete: bool = True
    """There are no more ranges of that lane."""
    lanes: bool = False
    """The tenant has more lanes."""
    alone: bool = True
    """The lane is all that this tenant has in the line."""


def one_by_one(answer: str, depth: int) -> list[Candidate]:
    """From the answers of `tenants`, `tenant` and `lanes` of `claim.sql`."""
    candidates: list[Candidate] = []
    before: str | None = None
    for tenant, more, rows in _decode(answer):
        lane = rows[0][0]
        own = [row[1:] for row in rows if row[0] == lane]
        candidate = Candidate(tenant, lane, own)
        candidate.jobs = sum([row[1] - row[0] + 1 for row in own])
        candidate.complete = len(rows) < depth or len(own) < len(rows)
        candidate.lanes = bool(more)
        candidate.alone = candidate.complete and not more
        candidate.follows, before = before, tenant
        candidates.append(candidate)
    return candidates


def as_they_come(row: tuple[Any, ...], asked: int, of_lanes: bool) -> tuple[list[Candidate], bool]:
    """From the answer of `stretch`: the tenants that it holds every range of, or one tenant that has more ranges."""
    names, lanes, los, his = _texts(row[0]), _numbers(row[1]), _numbers(row[2]), _numbers(row[3])
    counts = _counts(row[4], len(names))
    rows = len(names)
    candidates: list[Candidate] = []
    last: str | None = None
    candidate = Candidate("", 0, [])
    for tenant, lane, lo, hi, count in zip(names, lanes, los, his, counts, strict=True):
        if tenant != last:
            candidate = Candidate(tenant, lane, [(lo, hi, *count)], last, hi - lo + 1)
            last = tenant
            candidates.append(candidate)
        elif lane == candidate.lane:
            candidate.ranges.append((lo, hi, *count))
            candidate.jobs += hi - lo + 1
        else:
            candidate.lanes, candidate.alone = True, False
    if rows < asked:
        return candidates, True
    if len(candidates) > 1:
        return candidates[:-1], False
    candidate.complete = candidate.alone = False
    candidate.lanes = of_lanes
    return candidates, False


def ranges_of(row: tuple[Any, ...]) -> list[Range]:
    """From the answer of `ranges`."""
    los, his = _numbers(row[0]), _numbers(row[1])
    counts = _counts(row[2], len(los))
    return [(lo, hi, *count) for lo, hi, count in zip(los, his, counts, strict=True)]


_FRESH = (0, 0, 0, 0)


def _counts(text: str, rows: int) -> list[tuple[int, int, int, int]]:
    """Attempt, failures, crashes and suspect of each range; most have none of them."""
    if '"' not in text:
        return [_FRESH] * rows
    counts: list[tuple[int, int, int, int]] = []
    for count in _maybe_texts(text):
        if count is None:
            counts.append(_FRESH)
        else:
            attempt, failures, crashes, suspect = map(int, count.split())
            counts.append((attempt, failures, crashes, suspect))
    return counts
