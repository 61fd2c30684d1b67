"""`headrace jobs`: look at jobs, and the operator's moves on them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli import around, filters, ids, show
from headrace.cli.ids import GivenId
from headrace.cli.output import clean, emit, emit_list, on_terminal, progress, say, table
from headrace.cli.root import FAILED
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import JobNotFound
from headrace.model.job import Job, JobId
from headrace.model.records import CancelAnswer, Filter, Page
from headrace.operate.audit import chosen
from headrace.operate.groups import workflow
from headrace.operate.search import JobCount, Search

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.operate.jobs import JobOperations
    from headrace.operate.operations import Operations
    from headrace.store.contract import Store


MOST = 20_000
"""Jobs that one `jobs list` compares with a text."""


@click.group()
def command() -> None:
    """List, count, show, explain, cancel, retry and delete jobs."""


@command.command("list")
@filters.filter_options(state=True)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Jobs per page.")
@click.option("--before", type=ids.JOB_ID, help="The next page: jobs older than this id.")
@json_option
@store_command()
def list_(target: Target, where: Filter, limit: int, before: GivenId | None, as_json: bool) -> None:
    """Jobs by filter, newest first."""
    start = ids.whole_before(target, before)

    async def look(store: Store) -> None:
        page = await Search(store, target.task).fill(where, before=start, limit=limit, most=MOST)
        if where.text is not None and page.next is not None and len(page.jobs) < limit:
            say(f"looked at {page.looked_at:,} jobs")
        await print_page(Page(page.jobs, page.next), target, store, as_json=as_json)

    run(target.with_store(look))


async def print_page(page: Page, target: Target, store: Store, *, as_json: bool) -> None:
    """One page, as `jobs list` and `dead list` print it."""
    if as_json:
        emit_list([show.document(job, target, full=False) for job in page.jobs], next=page.next)
        return
    if page.jobs:
        show.table_of(await show.with_failures(store, page.jobs), await store.now())
    elif on_terminal():
        say("no such jobs")
    if page.next:
        say(f"more: add --before {ids.listed(page.next)}")


@command.command()
@filters.filter_options(state=True)
@json_option
@store_command()
def count(target: Target, where: Filter, as_json: bool) -> None:
    """How many jobs match, by state, queue, task and tenant."""

    async def look(store: Store) -> JobCount:
        search, before = Search(store, target.task), None
        total: JobCount | None = None
        with progress("count", quiet=as_json) as meter:
            while total is None or before is not None:
                part = await search.count(where, before=before)
                total, before = part if total is None else total.with_more(part), part.next
                meter(total.looked_at, 0, "")
        return total

    total = run(target.with_store(look))
    if as_json:
        emit({name: value for name, value in msgspec.structs.asdict(total).items() if name not in {"exact", "next"}})
        return
    click.echo(f"{filters.named(total.count)}")
    rows = [
        (kind, name or "–", f"{number:,}")
        for kind, counts in (
            ("state", total.states),
            ("queue", total.queues),
            ("task", total.tasks),
            ("tenant", total.tenants),
        )
        for name, number in counts.items()
    ]
    if rows:
        table(("by", "name", "jobs"), rows, right=(2,))


@command.command("show")
@click.argument("id", type=ids.JOB_ID)
@json_option
@store_command()
def show_(target: Target, id: GivenId, as_json: bool) -> None:
    """Everything about one job."""
    meant = ids.whole_one(target, id)

    async def look(store: Store) -> None:
        (job,) = await store.get([meant])
        if job is None:
            raise _not_found(meant)
        steps = await store.read_steps(meant)
        graph = await workflow(store, meant, around.DEPTH)
        if as_json:
            emit(show.document(job, target) | {"steps": show.journal(job, steps, target), "workflow": graph})
        else:
            click.echo("\n".join([show.page(job, target, datetime.now(UTC), steps), *around.lines(meant, graph)]))

    run(target.with_store(look))


@command.command("explain")
@click.argument("id", type=ids.JOB_ID)
@json_option
@store_command()
def explain_(target: Target, id: GivenId, as_json: bool) -> None:
    """Why a job is not running and, where that can be known, when it will."""
    meant = ids.whole_one(target, id)

    async def look(store: Store) -> None:
        explanation = await show.explanation(store, meant, target)
        if explanation is None:
            raise _not_found(meant)
        job, why = explanation
        if as_json:
            emit(
                {"id": job.id, "task": job.task, "queue": job.queue, "state": job.state, **msgspec.structs.asdict(why)}
            )
        else:
            click.echo(clean(why.sentence))

    run(target.with_store(look))


def _not_found(id: JobId) -> JobNotFound:
    return JobNotFound(f"no job {id}: it may have been pruned; `headrace jobs list` shows what there is")


_choice = filters.choice_options(state=True, every="Every job; asks first.")


@command.command()
@_choice
@click.option("--reason", help="Kept with the job.")
@json_option
@store_command()
def cancel(
    target: Target, given: tuple[GivenId, ...], where: Filter, every: bool, yes: bool, reason: str | None, as_json: bool
) -> None:
    """Cancel waiting jobs; ask running ones to stop."""

    async def move(jobs: JobOperations, ids: list[JobId]) -> dict[JobId, str]:
        return {id: answer.value for id, answer in (await jobs.cancel(ids, reason)).items()}

    good = {CancelAnswer.CANCELLED.value, CancelAnswer.ASKED.value}
    _bulk("cancel", target, given, where, every=every, yes=yes, as_json=as_json, move=move, good=good)


@command.command()
@_choice
@json_option
@store_command()
def retry(target: Target, given: tuple[GivenId, ...], where: Filter, every: bool, yes: bool, as_json: bool) -> None:
    """Make finished or scheduled jobs ready now, failures counted from 0."""

    async def move(jobs: JobOperations, ids: list[JobId]) -> dict[JobId, str]:
        moved = await jobs.retry(ids)
        return {id: "ready" if id in moved else "unchanged" for id in ids}

    _bulk("retry", target, given, where, every=every, yes=yes, as_json=as_json, move=move, good={"ready"})


@command.command()
@_choice
@json_option
@store_command()
def delete(target: Target, given: tuple[GivenId, ...], where: Filter, every: bool, yes: bool, as_json: bool) -> None:
    """Forget jobs that are not running."""

    async def move(jobs: JobOperations, ids: list[JobId]) -> dict[JobId, str]:
        gone = await jobs.delete(ids)
        return {id: "deleted" if id in gone else "unchanged" for id in ids}

    _bulk("delete", target, given, where, every=every, yes=yes, as_json=as_json, move=move, good={"deleted"})


def _bulk(
    verb: str,
    target: Target,
    given: tuple[GivenId, ...],
    where: Filter,
    *,
    every: bool,
    yes: bool,
    as_json: bool,
    move: Callable[[JobOperations, list[JobId]], Awaitable[dict[JobId, str]]],
    good: set[str],
) -> None:
    filters.must_choose(given, where, every=every or bool(where.states))
    filters.must_agree(f"{verb} every job that fits?", every=every, yes=yes)
    named = ids.whole(target, given)

    async def act(operations: Operations) -> dict[JobId, str]:
        answers: dict[JobId, str] = {}
        async with operations.jobs.many(chosen(named, where)) as jobs:

            async def one_page(page: list[Job | JobId]) -> None:
                known = [job.id for job in page if isinstance(job, Job)]
                answers.update({job: "unknown" for job in page if not isinstance(job, Job)})
                answers.update(await move(jobs, known))

            await filters.each_page(
                operations.store, named, where, target.task, title=verb, quiet=as_json, move=one_page
            )
        return answers

    answers = target.operate(act)
    if as_json:
        emit_list([{"id": id, "answer": answer} for id, answer in answers.items()])
    elif named:
        for id, answer in answers.items():
            click.echo(f"{id}  {answer}")
    else:
        counts = Counter(answers.values())
        click.echo(", ".join(f"{answer} {count:,}" for answer, count in sorted(counts.items())) or "no such jobs")
    if named and not set(answers.values()) <= good:
        raise SystemExit(FAILED)
