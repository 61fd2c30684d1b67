"""`headrace dead`: lists dead letters by the cause of their failure, and replays or discards them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict, replace

from headrace.cli import filters, ids, params, show
from headrace.cli.ids import GivenId
from headrace.cli.jobs import print_page
from headrace.cli.output import age, clean, emit, emit_list, on_terminal, progress, say, short, table
from headrace.cli.root import FAILED, complain
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import JobNotFound
from headrace.model import rate
from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Filter
from headrace.operate.dead.letters import Choice, DeadLetters, Group
from headrace.operate.dead.moves import Discarded, Replayed
from headrace.policy import fingerprint
from headrace.policy.canary import Canary

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta

    from headrace.operate.operations import Operations
    from headrace.store.contract import Store

_FINGERPRINT = params.Checked("fingerprint", fingerprint.check)
_RATE = params.Checked("rate", rate.parse)


@click.group()
def command() -> None:
    """List, show, replay and discard dead jobs."""


# ── looking ──────────────────────────────────────────────────────────────────


@command.command("list")
@filters.filter_options(state=False)
@click.option(
    "--group",
    type=_FINGERPRINT,
    is_flag=False,
    flag_value=True,
    metavar="[FINGERPRINT]",
    help="By bug, the default on a terminal; with a fingerprint: those that died of this bug, job by job.",
)
@click.option("--no-group", "one_by_one", is_flag=True, help="Job by job.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Jobs per page.")
@click.option("--before", type=ids.JOB_ID, help="The next page: jobs older than this id.")
@json_option
@store_command()
def list_(
    target: Target,
    where: Filter,
    group: str | bool | None,
    one_by_one: bool,
    limit: int,
    before: GivenId | None,
    as_json: bool,
) -> None:
    """Dead jobs: the bugs they died of, or the jobs themselves, newest first."""
    bug = group if isinstance(group, str) else None
    if group is not None and (one_by_one or (bug is None and before is not None)):
        raise click.UsageError(
            "--group lists bugs, --no-group and --before list jobs: leave one out", click.get_current_context()
        )
    jobs = bug is not None or one_by_one or before is not None
    if not jobs and (group is not None or (on_terminal() and not as_json)):
        _list_groups(target, where, as_json=as_json)
        return

    start = ids.whole_before(target, before)

    async def look(store: Store) -> None:
        page = await DeadLetters(store, target.task).jobs(where, group=bug, before=start, limit=limit)
        await print_page(page, target, store, as_json=as_json)

    run(target.with_store(look))


def _list_groups(target: Target, where: Filter, *, as_json: bool) -> None:
    async def look(store: Store) -> list[Group]:
        with progress("read", quiet=as_json) as meter:
            return await DeadLetters(store, target.task).groups(where, meter)

    groups = run(target.with_store(look))
    dead = sum(group.count for group in groups)
    if as_json:
        emit_list([asdict(group) for group in groups], dead=dead)
        return
    if not groups:
        say("no dead jobs")
        return
    now = datetime.now(UTC)
    headers = ("fingerprint", "count", "last", "first", "tasks", "bug")
    rows = [_row(group, now) for group in groups]
    table(headers, rows, right=(1, 2, 3), cut={"tasks": 16}, wrap={"bug": 30}, drop=("first", "tasks"))
    first = groups[0]
    say(
        f"{filters.named(dead, 'dead job')}, {filters.named(len(groups), 'bug')}.\n"
        f"one bug's jobs:  headrace dead list --group {first.fingerprint}\n"
        f"one of them:     headrace dead show {ids.listed(first.sample)}\n"
        f"once fixed:      headrace dead replay --group {first.fingerprint} --canary 10"
    )


def _row(group: Group, now: datetime) -> tuple[object, ...]:
    tasks = short(", ".join(group.tasks), 40)
    last, first = age(group.last_seen, now), age(group.first_seen, now)
    return group.fingerprint, f"{group.count:,}", last, first, tasks, short(group.title, 100)


@command.command("show")
@click.argument("id", type=ids.JOB_ID)
@json_option
@store_command()
def show_(target: Target, id: GivenId, as_json: bool) -> None:
    """One job with every failure and its traceback."""
    meant = ids.whole_one(target, id)

    async def look(store: Store) -> Job:
        (job,) = await store.get([meant])
        if job is None:
            raise JobNotFound(f"no job {meant}: it may have been pruned; `headrace dead list` shows what there is")
        return job

    job = run(target.with_store(look))
    cause = fingerprint.of_job(job) if job.state is JobState.DEAD else None
    if as_json:
        bug = {"fingerprint": cause.id, "title": cause.title} if cause else {"fingerprint": None, "title": None}
        emit(show.document(job, target) | bug)
        return
    click.echo(show.page(job, target, datetime.now(UTC)))
    if cause is not None:
        click.echo(f"\nbug {cause.id}: {clean(cause.title)}")
        say(f"all that died of it:  headrace dead list --group {cause.id}")


# ── moving ───────────────────────────────────────────────────────────────────

_group = click.option("--group", type=_FINGERPRINT, metavar="FINGERPRINT", help="Those that died of this bug.")
_choice = filters.choice_options(_group, state=False, every="Every dead job; asks first.")


@command.command()
@_choice
@click.option("--rate", "pace", type=_RATE, help='At most so many, e.g. "50/s" or "600/m".')
@click.option("--canary", type=click.IntRange(1, 1000), help="Replay so many first, watch them, then the rest.")
@click.option(
    "--tolerate",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.1,
    show_default=True,
    help="The share of canaries that may die again.",
)
@click.option(
    "--patience", type=params.DURATION, default="10m", show_default=True, help="How long canaries may take to end."
)
@json_option
@store_command()
def replay(
    target: Target,
    given: tuple[GivenId, ...],
    group: str | None,
    where: Filter,
    every: bool,
    yes: bool,
    pace: float | None,
    canary: int | None,
    tolerate: float,
    patience: timedelta,
    as_json: bool,
) -> None:
    """Make dead jobs ready again, failures counted from 0."""
    choice = _choose(target, given, where, group, every=every, yes=yes, verb="replay")
    first = None if canary is None else Canary(canary, tolerate, patience)

    async def act(operations: Operations) -> Replayed:
        answer = Replayed()
        try:
            with progress("replay", quiet=as_json) as meter:
                return await operations.dead.replay(choice, rate=pace, canary=first, progress=meter, into=answer)
        except asyncio.CancelledError:
            say(f"stopped: {filters.named(len(answer.replayed))} replayed, the rest stay dead")
            raise

    answer = target.operate(act)
    if as_json:
        trial = None if answer.trial is None else {**asdict(answer.trial), "waiting": answer.trial.waiting}
        emit(asdict(replace(answer, trial=None)) | {"trial": trial})
    else:
        click.echo(f"replayed {filters.named(len(answer.replayed))}")
    if answer.stopped:
        complain(f"stopped: {answer.stopped}")
    if answer.late:
        complain(
            f"{filters.named(len(answer.late))} left dead, as expires or deadline has passed: {filters.listed(answer.late)}: "
            "enqueue anew what is still wanted, and discard them"
        )
    matched = bool(answer.replayed or answer.refused or answer.late)
    _end(choice, answer.refused, matched=matched, failed=answer.stopped is not None or bool(choice.ids and answer.late))


@command.command()
@_choice
@click.option("--reason", required=True, help="Why; kept in the record.")
@json_option
@store_command()
def discard(
    target: Target,
    given: tuple[GivenId, ...],
    group: str | None,
    where: Filter,
    every: bool,
    yes: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Forget dead jobs for good. Each leaves a line in the log headrace.audit: on stderr, unless the app sets up logging."""
    choice = _choose(target, given, where, group, every=every, yes=yes, verb="discard")

    async def act(operations: Operations) -> Discarded:
        answer = Discarded()
        try:
            with progress("discard", quiet=as_json) as meter:
                return await operations.dead.discard(choice, reason=reason, progress=meter, into=answer)
        except asyncio.CancelledError:
            say(f"stopped: {filters.named(len(answer.records))} discarded, the rest stay dead")
            raise

    answer = target.operate(act)
    if as_json:
        emit({"discarded": [asdict(record) for record in answer.records], "refused": answer.refused})
    else:
        click.echo(f"discarded {filters.named(len(answer.records))}")
    _end(choice, answer.refused, matched=bool(answer.records or answer.refused))


def _choose(
    target: Target, given: Sequence[GivenId], where: Filter, group: str | None, *, every: bool, yes: bool, verb: str
) -> Choice:
    filters.must_choose(given, where, every=every or group is not None)
    filters.must_agree(f"{verb} every dead job that fits?", every=every, yes=yes)
    return Choice.of(ids.whole(target, given), group=group, where=where, everything=every)


def _end(choice: Choice, refused: Collection[JobId], *, matched: bool, failed: bool = False) -> None:
    """An unknown id is an error. A filter that finds nothing is not."""
    if choice.ids and refused:
        complain(f"not dead, or not there: {filters.listed(refused)}: see `headrace jobs show ID`")
        failed = True
    if choice.group is not None and not matched:
        complain(f"no dead job died of {choice.group}: `headrace dead list --group` shows the bugs there are")
        failed = True
    if failed:
        raise SystemExit(FAILED)
