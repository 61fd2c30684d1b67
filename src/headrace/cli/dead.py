"""`headrace dead`: the dead letters, and what can be done with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import filters, params, show
from headrace.cli.jobs import list_jobs, show_job
from headrace.cli.output import clean, emit
from headrace.cli.root import FAILED, complain
from headrace.cli.target import Target, json_option, run, store_command
from headrace.job import Job, JobId, JobState
from headrace.store.contract import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.store.contract import Store

_DEAD = frozenset({JobState.DEAD})


@click.group()
def command() -> None:
    """List, show, replay and discard dead jobs."""


@command.command("list")
@filters.filter_options(state=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Jobs per page.")
@click.option("--before", type=params.JOB_ID, help="The next page: jobs older than this id.")
@json_option
@store_command()
def list_(target: Target, where: Filter, limit: int, before: JobId | None, as_json: bool) -> None:
    """Dead jobs by filter, newest first."""
    list_jobs(target, replace(where, states=_DEAD), limit=limit, before=before, as_json=as_json)


@command.command("show")
@click.argument("id", type=params.JOB_ID)
@json_option
@store_command()
def show_(target: Target, id: JobId, as_json: bool) -> None:
    """One job with every failure and its traceback."""
    show_job(target, id, as_json=as_json)


_ids = click.argument("ids", nargs=-1, type=params.JOB_ID)
_all = click.option("--all", "every", is_flag=True, help="Every dead job; asks first.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@command.command()
@_ids
@filters.filter_options(state=False)
@_all
@_yes
@json_option
@store_command()
def replay(target: Target, ids: tuple[JobId, ...], where: Filter, every: bool, yes: bool, as_json: bool) -> None:
    """Make dead jobs ready again, failures counted from 0."""
    _choose(ids, where, every=every, yes=yes, verb="replay")
    replayed: list[JobId] = []

    async def act(store: Store) -> list[JobId]:
        refused: list[JobId] = []

        async def one_page(jobs: list[Job | JobId]) -> None:
            dead, others = _split(jobs)
            moved = await store.retry([job.id for job in dead])
            replayed.extend(job.id for job in dead if job.id in moved)
            refused.extend(others)
            refused.extend(job.id for job in dead if job.id not in moved)

        await filters.each_page(store, ids, replace(where, states=_DEAD), title="replay", quiet=as_json, move=one_page)
        return refused

    refused = run(target.with_store(act))
    if as_json:
        emit({"replayed": replayed, "refused": refused})
    else:
        click.echo(f"replayed {filters.named(len(replayed))}")
    _end(refused if ids else [])


@command.command()
@_ids
@filters.filter_options(state=False)
@_all
@_yes
@json_option
@store_command()
def discard(target: Target, ids: tuple[JobId, ...], where: Filter, every: bool, yes: bool, as_json: bool) -> None:
    """Forget dead jobs for good; what is printed is all that stays of them."""
    _choose(ids, where, every=every, yes=yes, verb="discard")
    records: list[dict[str, Any]] = []

    async def act(store: Store) -> list[JobId]:
        refused: list[JobId] = []

        async def one_page(jobs: list[Job | JobId]) -> None:
            dead, others = _split(jobs)
            # Only `get` knows the failures, and the record is to say why the job died.
            whole = [job for job in await store.get([job.id for job in dead]) if job is not None]
            gone = await store.delete([job.id for job in whole])
            for job in whole:
                if job.id in gone:
                    records.append(_record(job, target))
                    if not as_json:
                        click.echo(_line(records[-1]))
            refused.extend(others)
            refused.extend(job.id for job in dead if job.id not in gone)

        await filters.each_page(store, ids, replace(where, states=_DEAD), title="discard", quiet=as_json, move=one_page)
        return refused

    refused = run(target.with_store(act))
    if as_json:
        emit({"discarded": records, "refused": refused})
    else:
        click.echo(f"discarded {filters.named(len(records))}")
    _end(refused if ids else [])


def _choose(ids: Sequence[JobId], where: Filter, *, every: bool, yes: bool, verb: str) -> None:
    filters.must_choose(ids, where, every=every)
    if every and not yes:
        click.confirm(f"{verb} every dead job that fits?", abort=True, err=True)


def _split(jobs: list[Job | JobId]) -> tuple[list[Job], list[JobId]]:
    """The dead ones, and the ids of what is not dead or not there."""
    dead = [job for job in jobs if isinstance(job, Job) and job.state is JobState.DEAD]
    ids = {job.id for job in dead}
    found = [job.id if isinstance(job, Job) else job for job in jobs]
    return dead, [id for id in found if id not in ids]


def _record(job: Job, target: Target) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "tenant": job.tenant,
        "enqueued_at": job.enqueued_at,
        "finished_at": job.finished_at,
        "attempt": job.attempt,
        "reason": show.reason(job),
        "payload": show.payload(job, target),
    }


def _line(record: dict[str, Any]) -> str:
    return clean(f"discarded {record['id']} {record['task']} ({record['queue']}): {record['reason']}")


def _end(refused: list[JobId]) -> None:
    if refused:
        complain(f"not dead, or not there: {filters.listed(refused)}: see `headrace jobs show ID`")
        raise SystemExit(FAILED)
