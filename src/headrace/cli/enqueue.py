"""`headrace enqueue`: one job from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import emit
from headrace.cli.target import Target, json_option, run, store_command
from headrace.client.queue_guard import bounded
from headrace.errors import ConfigError, PayloadTooLarge, UnknownTask
from headrace.model.job import Batch, JobId, NewJob, job_id, new_batch
from headrace.store import in_one_process, scheme_of
from headrace.store.audit import whoami
from headrace.task.codec import marked
from headrace.task.job_options import OPTIONS, JobKeywords, checked
from headrace.task.raw import raw_job
from headrace.webhooks.declare import Allow
from headrace.webhooks.deliver import Webhooks

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task", type=params.TASK)
@click.argument("args", nargs=-1)
@click.option("--kwargs", help='Named arguments as a JSON object: \'{"shop": "acme"}\'.')
@params.declared(OPTIONS)
@click.option("--raw", is_flag=True, help="Without an app: store the arguments as they are, unchecked.")
@json_option
@store_command(create=True)
def command(
    target: Target,
    task: str,
    args: tuple[str, ...],
    kwargs: str | None,
    raw: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue one job of TASK; each of ARGS is a JSON value, so a text needs its quotes: '"acme"'."""
    if options["delay"] is not None and options["run_at"] is not None:
        raise _usage("--delay or --run-at, not both")
    if options["key_ttl"] is not None and options["key"] is None:
        raise _usage("--key-ttl says how long the key is remembered: give --key")
    url = target.settings.url
    if in_one_process(url):
        raise ConfigError(
            f"{scheme_of(url)}:// ends with this command, and its jobs, too: give a store that stays, e.g. sqlite:///jobs.db"
        )
    job = make_job(target, task, args, kwargs, raw=raw, options=options)
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
    options: Mapping[str, Any],
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
        return _raw(target, task, call, options)
    return _checked(target, task, call, options)


def _checked(target: Target, name: str, call: Call, options: Mapping[str, Any]) -> NewJob:
    """Make the job through the app's task, whose signature types the JSON."""
    task = target.task(name)
    if task is None:
        raise UnknownTask(name, () if target.app is None else target.app.tasks)
    payload = msgspec.json.encode({"args": call[0], "kwargs": call[1]})
    args, kwargs = task.codec.decode(payload)
    return task.using(**cast("JobKeywords", options)).job(*args, **kwargs).job


def _raw(target: Target, task: str, call: Call, options: Mapping[str, Any]) -> NewJob:
    # Sorted like the jobs of a task with a key, so that the same arguments make the same digest.
    payload = msgspec.msgpack.Encoder(order="sorted").encode(call)
    settings = target.settings
    if len(payload) > settings.max_payload:
        raise PayloadTooLarge(len(payload), settings.max_payload)
    given = checked(options, Webhooks(allow=Allow.of(settings.webhook_allow)))
    return raw_job(task, payload, given, queue=given.get("queue", "default"), key_ttl=settings.key_ttl)


def _usage(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context(silent=True))
