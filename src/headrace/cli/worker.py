"""`headrace worker`: worker processes for an app; it becomes their supervisor, headrace.supervisor."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import params
from headrace.cli.target import Target, app_argument, must_have_app, resolve, run, url_option
from headrace.errors import Unavailable
from headrace.runtime import logs
from headrace.settings import LOG_FORMATS, LOG_LEVELS

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@app_argument
@url_option
@click.option("-Q", "--queues", type=params.QUEUES, help="Only these, instead of all that the app's tasks name.")
@click.option("-c", "--concurrency", type=int, help="Jobs at once in each process [default: 100].")
@click.option("--threads", type=int, help="Sync tasks at once in each process [default: 16].")
@click.option(
    "--reserve",
    type=params.RESERVE,
    help="Slots of each process that only some jobs may take: high=2, low=1, or 5=2 for priority 5 and up.",
)
@click.option("--processes", type=int, help="Worker processes [default: 1].")
@click.option("--lease", type=params.DURATION, help="How long a silent worker keeps its jobs [default: 15s].")
@click.option("--heartbeat", type=params.DURATION, help="How often leases are renewed [default: 5s].")
@click.option("--poll", type=params.DURATION, help="How often to look for jobs without a hint [default: 1s].")
@click.option("--drain", type=params.DURATION, help="How long to let jobs finish when told to stop [default: 25s].")
@click.option("--max-jobs", type=int, help="Replace a worker process after so many jobs [default: never].")
@click.option(
    "--max-memory", type=params.SIZE, help="Replace a worker process that uses more, as 512MB [default: never]."
)
@click.option("--max-jobs-per-child", type=int, help="The same for child processes of process tasks [default: never].")
@click.option("--max-memory-per-child", type=params.SIZE, help="The same for child processes of process tasks.")
@click.option("-l", "--log-level", type=click.Choice(LOG_LEVELS), help="[default: info].")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Lines for people, or JSON objects [default: text].")
@click.option(
    "--job-log-level",
    type=click.Choice(LOG_LEVELS),
    help="Of the lines for the start and the end of each job [default: debug].",
)
@click.option(
    "--health-port",
    "--metrics-port",
    "health_port",
    type=click.IntRange(0, 65535),
    help="Answer /livez, /readyz and /metrics here, for all processes; 0: a free port [default: off].",
)
@click.option("--health-host", default="127.0.0.1", show_default=True, help="The address for --health-port.")
def command(
    app: str | None,
    url: str | None,
    health_port: int | None,
    health_host: str,
    **flags: timedelta | int | str | tuple[str, ...] | None,
) -> None:
    """Run workers for APP until told to stop.

    TERM or Ctrl-C drains; a second one, or QUIT, hands back at once; TSTP stops claiming; USR1 dumps stacks.
    """
    settings: dict[str, Any] = flags
    target = must_have_app(resolve(app=app, url=url, create=True, **settings))
    logs.configure(target.settings.log_level, target.settings.log_format)
    _check(target)
    from headrace.cli.supervise import supervise
    from headrace.supervisor.probe_server import Address

    health = None if health_port is None else Address(health_host, health_port)
    supervise(target.settings, health)


def _check(target: Target) -> None:
    """Report a wrong URL or a missing schema as one error now, and warnings once, not as a log line per process later."""
    from headrace.store.remarks import log_remarks

    async def answers(store: Store) -> None:
        await store.now()
        log_remarks(store)

    # A store that cannot be reached may come back. The workers wait for it and log that.
    with contextlib.suppress(Unavailable):
        run(target.with_store(answers))
