"""`headrace schedules`: shows and changes cron and interval rules at run time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from headrace.cli import params
from headrace.cli.enqueue import make_job
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import ConfigError
from headrace.model import duration
from headrace.operate.schedules import Schedules
from headrace.policy.schedule import check_name, declare
from headrace.policy.schedule_entry import Decision, ScheduleEntry
from headrace.policy.schedule_options import OPTIONS as SCHEDULE_OPTIONS
from headrace.policy.schedule_options import ScheduleKeywords
from headrace.task.job_options import OPTIONS as JOB_OPTIONS

if TYPE_CHECKING:
    from headrace.operate.operations import Operations
    from headrace.operate.schedules import ScheduleOperations
    from headrace.store.contract import Store

NAME = params.Checked("schedule", check_name)


@click.group()
def command() -> None:
    """List, add, pause, resume, run and remove schedules."""


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """Every schedule: its rule, its next slot, what became of the last one."""

    async def look(store: Store) -> None:
        now = await store.now()
        entries = await Schedules(store).all()
        if as_json:
            emit_list([_document(entry, now) for entry in entries.values()])
        elif entries:
            headers = ("name", "rule", "task", "next", "last", "fired", "skipped", "state")
            rows = [_row(entry, now) for entry in entries.values()]
            cut, drop = {"name": 16, "rule": 16, "task": 16, "last": 12}, ("skipped", "fired", "task", "last")
            table(headers, rows, right=(3, 5, 6), cut=cut, drop=drop)
        else:
            say("no schedules: declare one with app.schedule(…), or `headrace schedules add`")

    run(target.with_store(look))


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", type=NAME)
@click.argument("task", type=params.TASK)
@click.argument("args", nargs=-1)
@params.declared(SCHEDULE_OPTIONS)
@click.option("--kwargs", help="Named arguments as a JSON object.")
@params.declared(JOB_OPTIONS, without=("run_at", "key", "key_ttl"))
@click.option("--raw", is_flag=True, help="Without an app: store the arguments as they are, unchecked.")
@click.option("--replace", is_flag=True, help="One of that name may be there.")
@json_option
@store_command(create=True)
def add(
    target: Target,
    name: str,
    task: str,
    args: tuple[str, ...],
    kwargs: str | None,
    *,
    raw: bool,
    replace: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Add a schedule that enqueues TASK; each of ARGS is a JSON value, so a text needs its quotes: '"acme"'."""
    rule = {name: options.pop(name) for name in SCHEDULE_OPTIONS}
    job = make_job(target, task, args, kwargs, raw=raw, options=options)
    try:
        schedule = declare(name, job=job, **cast("ScheduleKeywords", rule))
    except ConfigError as error:
        raise click.UsageError(str(error), click.get_current_context(silent=True)) from None

    async def act(operations: Operations) -> None:
        entry = await operations.schedules.add(schedule, replace=replace)
        now = await operations.store.now()
        if as_json:
            emit(_document(entry, now))
        else:
            click.echo(f"{name}: {schedule.rule}, next {_time(entry.next_slot(now))}")

    target.operate(act)


_names = click.argument("names", nargs=-1, required=True, type=NAME)


@command.command()
@_names
@json_option
@store_command()
def pause(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """No slot of these schedules fires until they are resumed; also not after a restart."""

    async def act(book: ScheduleOperations, name: str) -> str:
        await book.pause(name)
        return "paused"

    _act_on(target, names, act, as_json=as_json)


@command.command()
@_names
@json_option
@store_command()
def resume(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Let these schedules fire again, from the next slot on."""

    async def act(book: ScheduleOperations, name: str) -> str:
        await book.resume(name)
        return "resumed"

    _act_on(target, names, act, as_json=as_json)


@command.command("run-now")
@_names
@json_option
@store_command()
def run_now(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Make one job of each now, outside of any slot."""

    async def act(book: ScheduleOperations, name: str) -> str:
        return str(await book.run_now(name))

    _act_on(target, names, act, as_json=as_json)


@command.command()
@_names
@json_option
@store_command()
def remove(target: Target, names: tuple[str, ...], as_json: bool) -> None:
    """Forget these schedules; the jobs they made stay."""

    async def act(book: ScheduleOperations, name: str) -> str:
        if await book.remove(name):
            say(f"{name} is declared in code: it comes back with the next worker; to stop it for good, pause it")
        return "removed"

    _act_on(target, names, act, as_json=as_json)


def _act_on(target: Target, names: tuple[str, ...], act: Any, *, as_json: bool) -> None:
    async def do(operations: Operations) -> dict[str, str]:
        # One by one: changes before a wrong name stay.
        return {name: await act(operations.schedules, name) for name in names}

    answers = target.operate(do)
    if as_json:
        emit_list([{"name": name, "answer": answer} for name, answer in answers.items()])
    else:
        for name, answer in answers.items():
            click.echo(f"{name}: {answer}")


def _row(entry: ScheduleEntry, now: datetime) -> tuple[object, ...]:
    schedule = entry.schedule
    last = entry.recent[0] if entry.recent else None
    return (
        schedule.name,
        schedule.rule,
        schedule.job.task,
        age(next_of(entry, now), now),
        "" if last is None else f"{last.answer} {age(last.slot, now)} ago",
        entry.fired,
        entry.skipped,
        "paused" if entry.paused else "",
    )


def next_of(entry: ScheduleEntry, now: datetime) -> datetime | None:
    """The next slot; None if it is paused, or if this machine does not know its time zone."""
    try:
        return entry.next_slot(now)
    except ConfigError:
        return None


def _document(entry: ScheduleEntry, now: datetime) -> dict[str, Any]:
    schedule = entry.schedule
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "every": None if schedule.every is None else duration.show(schedule.every),
        "tz": schedule.tz,
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
        "jitter": duration.show(schedule.jitter),
        "task": schedule.job.task,
        "queue": schedule.job.lane.queue,
        "priority": schedule.job.lane.priority,
        "tenant": schedule.job.lane.tenant,
        "declared": entry.declared,
        "paused": entry.paused,
        "paused_by": entry.paused_by,
        "next": next_of(entry, now),
        "fired": entry.fired,
        "skipped": entry.skipped,
        "last_job": entry.last,
        "recent": [_decision(decision) for decision in entry.recent],
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "answer": decision.answer,
        "slot": decision.slot,
        "reason": decision.reason,
        "count": decision.count,
        "job": decision.job,
    }


def _time(moment: datetime | None) -> str:
    return "never: it is paused" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
