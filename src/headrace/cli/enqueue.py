"""`headrace enqueue`: one job from the command line."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit
from headrace.cli.target import Target, json_option, run, store_command
from headrace.client.queue_guard import bounded
from headrace.errors import ConfigError, PayloadTooLarge, UnknownTask
from headrace.model import lane
from headrace.model.job import Batch, Due, JobId, Key, NewJob, job_id, new_batch
from headrace.store import in_one_process, scheme_of
from headrace.store.audit import whoami
from headrace.task.codec import JobOptions, encode_options, marked

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task", type=params.TASK)
@click.argument("args", nargs=-1)
@click.option("--kwargs", help='Named arguments as a JSON object: \'{"shop": "acme"}\'.')
@click.option("--queue", type=params.QUEUE, help="Instead of the task's own.")
@click.option("--priority", type=params.PRIORITY, help="Higher runs first.")
@click.option("--delay", type=params.DURATION, help='Not before "5m" from now.')
@click.option("--run-at", type=params.MOMENT, help="Not before this time, e.g. 2026-01-31T08:00:00Z.")
@click.option("--tenant", type=params.TENANT, help="The tenant that the job belongs to.")
@click.option("--expires", type=params.WITHIN, help="No attempt starts later: so long from now, or a time.")
@click.option("--deadline", type=params.WITHIN, help="Over all attempts: so long from now, or a time.")
@click.option("--key", type=params.KEY, help="Idempotency key: the same key and arguments make one job.")
@click.option("--raw", is_flag=True, help="Without an app: store the arguments as they are, unchecked.")
@json_option
@store_command(create=True)
def command(
    target: Target,
    task: str,
    args: tuple[str, ...],
    kwargs: str | None,
    delay: timedelta | None,
    run_at: datetime | None,
    raw: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue one job of TASK; each of ARGS is a JSON value, so a text needs its quotes: '"acme"'."""
    if delay is not None and run_at is not None:
        raise _usage("--delay or --run-at, not both")
    url = target.settings.url
    if in_one_process(url):
        raise ConfigError(
            f"{scheme_of(url)}:// ends with this command, and its jobs, too: give a store that stays, e.g. sqlite:///jobs.db"
        )
    job = make_job(target, task, args, kwargs, raw=raw, delay=delay, run_at=run_at, **options)
    signed = msgspec.structs.replace(job, options=marked(job.options, by=whoami()))
    batch = Batch(id=new_batch(), jobs=[signed])

    async def put(store: Store) -> JobId:
        queues = {} if target.app is None else target.app.queues
        answer = await bounded(store, queues).enqueue(batch)
        return answer.existing.get(0, job_id(batch.id, 0))

    id = run(target.with_store(put))
    if as_json:
        emit({"id": id})
    else:
        click.echo(str(id))


Call = tuple[list[Any], dict[str, Any]]


def make_job(
    target: Target,
    task: str,
    args: tuple[str, ...],
    kwargs: str | None,
    *,
    raw: bool,
    delay: timedelta | None = None,
    run_at: datetime | None = None,
    **options: Any,
) -> NewJob:
    """A job from the command line, checked by the app's task unless it is raw."""
    given = [params.read_json(text, f"args[{place}]") for place, text in enumerate(args)]
    named: Any = params.read_json(kwargs, "--kwargs") if kwargs else {}
    if not isinstance(named, dict):
        raise _usage("--kwargs must be a JSON object")
    if target.app is None and not raw:
        raise _usage(
            "without an app the arguments cannot be checked: give --app APP (or HEADRACE_APP), "
            "or --raw to store them as they are"
        )
    call: Call = (given, cast("dict[str, Any]", named))
    if raw:
        return _raw(target, task, call, due=delay or run_at, **options)
    return _checked(target, task, call, delay=delay, run_at=run_at, **options)


def _checked(target: Target, name: str, call: Call, **options: Any) -> NewJob:
    """Make the job through the app's task, whose signature types the JSON."""
    task = target.task(name)
    if task is None:
        raise UnknownTask(name)
    payload = msgspec.json.encode({"args": call[0], "kwargs": call[1]})
    args, kwargs = task.codec.decode(payload)
    return task.using(**options).job(*args, **kwargs).job


def _raw(
    target: Target,
    task: str,
    call: Call,
    *,
    due: Due,
    queue: str | None,
    priority: int | None,
    tenant: str | None,
    key: str | None,
    expires: timedelta | datetime | None = None,
    deadline: timedelta | datetime | None = None,
) -> NewJob:
    # Sorted like the jobs of a task with a key, so that the same arguments make the same digest.
    payload = msgspec.msgpack.Encoder(order="sorted").encode(call)
    if len(payload) > target.settings.max_payload:
        raise PayloadTooLarge(len(payload), target.settings.max_payload)
    once = None
    if key is not None:
        once = Key(name=key, ttl=target.settings.key_ttl, digest=hashlib.blake2b(payload, digest_size=16).digest())
    where = lane.Lane(queue=queue or "default", priority=priority or 0, tenant=tenant or "")
    own = JobOptions(expires=_moment(expires), deadline=_moment(deadline))
    options = marked(encode_options(own), key=key)
    return NewJob(task=task, payload=payload, lane=where, due=due, key=once, options=options)


def _moment(value: timedelta | datetime | None) -> float | datetime | None:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context(silent=True))
