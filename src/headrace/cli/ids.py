"""Job ids on the command line: the whole id, or the short one that lists print on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.output import on_terminal
from headrace.cli.params import Checked
from headrace.cli.target import Target, run
from headrace.errors import ConfigError, JobNotFound
from headrace.model.job import JobId, parse_id, split_id
from headrace.model.records import Filter
from headrace.model.short_id import ShortId, parse_short, shorten

if TYPE_CHECKING:
    from headrace.store.contract import Store

GivenId = JobId | ShortId
"""What a user gave."""

_CALLS = 16
"""Calls of the store for one short id. Two are enough unless several producers enqueued within the same 250 ns."""


def read(text: str) -> GivenId:
    """An id as a user typed it. Raises ConfigError."""
    if (short := parse_short(text)) is not None:
        return short
    try:
        return parse_id(text)
    except ConfigError:
        raise ConfigError(
            f"{text[:60]!r} is not a job id: it looks like 01890a5d-ac96-774b-bcce-b302099a0001, or in short "
            "64gmqdcjstby.1"
        ) from None


JOB_ID = Checked("id", read)


def listed(id: JobId) -> str:
    """An id as a list prints it: short on a terminal, whole in a pipe, because scripts compare ids."""
    return shorten(id) if on_terminal() else str(id)


def whole(target: Target, given: Sequence[GivenId]) -> tuple[JobId, ...]:
    """The ids that are meant. Opens the store only if one of them is short. Raises JobNotFound and a usage error."""
    if not any(isinstance(id, ShortId) for id in given):
        return tuple(id for id in given if not isinstance(id, ShortId))

    async def look(store: Store) -> tuple[JobId, ...]:
        return tuple([await expand(store, id) if isinstance(id, ShortId) else id for id in given])

    return run(target.with_store(look))


def whole_one(target: Target, given: GivenId) -> JobId:
    """The same for one id."""
    return whole(target, (given,))[0]


def whole_before(target: Target, given: GivenId | None) -> JobId | None:
    """The same for the beginning of a page."""
    return None if given is None else whole_one(target, given)


async def expand(store: Store, short: ShortId) -> JobId:
    """The job that a short id means. It reads one job of each enqueue call in the range, which is nearly always one."""
    before = short.above
    candidates: list[JobId] = []
    for _ in range(_CALLS):
        page = await store.find(Filter(), before=before, limit=1)
        last = page.jobs[-1].id if page.jobs else page.next
        if last is None or not short.within(last):
            break
        before = last
        if page.jobs:
            batch, _ = split_id(last)
            candidates.append(short.of(batch))
            before = JobId(batch)  # The next look begins below the first job of this enqueue call.
    ids = [job.id for job in await store.get(candidates) if job is not None] if candidates else []
    if not ids:
        raise JobNotFound(f"no job {short.text}: it may have been pruned; `headrace jobs list` shows what there is")
    if len(ids) > 1:
        several = ", ".join(str(id) for id in ids)
        raise click.UsageError(
            f"{short.text} may mean {len(ids)} jobs: {several}", click.get_current_context(silent=True)
        )
    return ids[0]
