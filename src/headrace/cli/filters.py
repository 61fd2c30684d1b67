"""Which jobs a command changes: the filter options, and moves of many jobs, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import wraps
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from headrace.cli import params
from headrace.cli.ids import JOB_ID
from headrace.cli.ids import listed as shown_id
from headrace.cli.output import progress
from headrace.model.job import FINISHED, Job, JobId, JobState
from headrace.model.records import Filter
from headrace.operate.search import Search
from headrace.operate.shown import TaskSource
from headrace.store.contract import Store

Command = TypeVar("Command", bound=Callable[..., Any])

PAGE = 500
"""Jobs per step of a bulk move: one round trip, and one step of the progress bar."""


def filter_options(*, state: bool) -> Callable[[Command], Command]:
    """The options that make a Filter; the command gets it as `where`. Without `state` it is for dead letters."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_filter(**options: Any) -> Any:
            states: Sequence[str] = options.pop("state", ())
            where = Filter(
                states=frozenset(JobState(name) for name in states),
                **{name: options.pop(name) for name in ("queue", "task", "tenant", "since", "until", "text")},
            )
            return command(where=where, **options)

        decorated: Any = with_filter
        decorated = click.option("--text", help=_TEXT if state else _DEAD_TEXT)(decorated)
        for option in reversed(_OPTIONS if state else _OPTIONS[1:]):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]  # click's decorators keep the function

    return decorate


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--state", multiple=True, type=click.Choice([state.value for state in JobState]), help="May be repeated."
    ),
    click.option("--queue", type=params.QUEUE, help="Jobs of this queue."),
    click.option("--task", type=params.TASK, help="Jobs of this task."),
    click.option("--tenant", type=params.TENANT, help="Jobs of this tenant."),
    click.option("--since", type=params.PAST, help='Enqueued since a time, or "2h" ago.'),
    click.option("--until", type=params.PAST, help='Enqueued before a time, or "2h" ago.'),
]
_TEXT = "In the task's name, the arguments, the key, the note or a failure."
_DEAD_TEXT = "In the task's name, the note or a failure."


def choice_options(*more: Callable[[Any], Any], state: bool, every: str) -> Callable[[Command], Command]:
    """What a bulk move takes: `given` (ids), or `where` and `more`, or `every`; and `yes`. `every`: the help of --everything."""
    parts = (
        click.argument("given", metavar="[IDS]...", nargs=-1, type=JOB_ID),
        *more,
        filter_options(state=state),
        click.option("--everything", "every", is_flag=True, help=every),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )

    def decorate(command: Command) -> Command:
        decorated: Any = command
        for part in reversed(parts):
            decorated = part(decorated)
        return decorated  # type: ignore[no-any-return]  # click's decorators keep the function

    return decorate


def empty(where: Filter) -> bool:
    """Whether the filter would match every job."""
    return replace(where, states=frozenset()) == Filter()


def must_choose(ids: Sequence[object], where: Filter, *, every: bool) -> None:
    """Check that a bulk move has exactly one kind of selection."""
    if ids and (every or not empty(where)):
        raise click.UsageError("give job ids or filters, not both", click.get_current_context(silent=True))
    if not ids and not every and empty(where):
        raise click.UsageError(
            "no jobs are selected: give ids, a filter such as --task, or --everything",
            click.get_current_context(silent=True),
        )


def must_agree(question: str, *, every: bool, yes: bool) -> None:
    """A move of every job asks first; without an agreement the command ends."""
    if every and not yes:
        click.confirm(question, abort=True, err=True)


async def pages(
    store: Store, ids: Sequence[JobId], where: Filter, task_of: TaskSource
) -> AsyncIterator[list[Job | JobId]]:
    """The selected jobs, a page at a time. An unknown id is passed on."""
    if ids:
        for start in range(0, len(ids), PAGE):
            chunk = ids[start : start + PAGE]
            jobs = await store.get(chunk)
            yield [job or id for job, id in zip(jobs, chunk, strict=True)]
        return
    before: JobId | None = None
    search = Search(store, task_of)
    while True:
        page = await search.page(where, before=before, limit=PAGE)
        if page.jobs:
            yield list(page.jobs)
        if page.next is None:
            return
        before = page.next


async def expected(store: Store, ids: Sequence[JobId], where: Filter) -> int:
    """How many jobs a bulk move will find, if that is known without counting. 0: unknown."""
    if ids:
        return len(ids)
    states = where.states
    if (
        replace(where, states=frozenset(), queue=None) != Filter()
        or not states
        or states & (FINISHED - {JobState.DEAD})
    ):
        return 0
    figures = [queue for queue in (await store.stats()).queues if where.queue in {None, queue.queue}]
    return sum(getattr(queue, state.value) for queue in figures for state in states)


async def each_page(
    store: Store,
    ids: Sequence[JobId],
    where: Filter,
    task_of: TaskSource,
    *,
    title: str,
    quiet: bool,
    move: Callable[[list[Job | JobId]], Awaitable[None]],
) -> None:
    """Apply a move to the chosen jobs with a progress bar."""
    total = await expected(store, ids, where)
    done = 0
    with progress(title, quiet=quiet) as meter:
        meter(0, total, "")
        async for jobs in pages(store, ids, where, task_of):
            await move(jobs)
            done += len(jobs)
            meter(done, max(total, done) if total else 0, "")


def named(count: int, what: str = "job") -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(ids: Collection[JobId]) -> str:
    """The first few ids of many."""
    first = ", ".join(shown_id(id) for id in list(ids)[:5])
    return f"{first} and {len(ids) - 5:,} more" if len(ids) > 5 else first
