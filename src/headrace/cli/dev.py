"""`headrace dev`: an app's worker and server in one process with a live view of what happens."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import click

from headrace.cli import params
from headrace.cli.board import Board
from headrace.cli.filters import named
from headrace.cli.output import on_terminal, say
from headrace.cli.reload import follow_reloader, reload
from headrace.cli.target import Target, app_argument, dotted, load_object, must_have_app, resolve, run_long, url_option
from headrace.errors import ConfigError
from headrace.runtime import logs
from headrace.runtime.sighup import on_hangup
from headrace.settings import LOG_FORMATS

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.store.contract import Store
    from headrace.worker import Worker

Background = Callable[[], Awaitable[object]]


@click.command()
@app_argument
@url_option
@click.option("-Q", "--queues", type=params.QUEUES, help="Only these, instead of all that the app's tasks name.")
@click.option("-c", "--concurrency", type=int, help="Jobs at once [default: 100].")
@click.option(
    "--with", "functions", multiple=True, metavar="MODULE:FUNCTION", help="An async function to run alongside."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8200, show_default=True, help="The port of the server.")
@click.option("--server/--no-server", default=True, help="The queue over HTTP, on this machine only [default: on].")
@click.option("--every", type=params.DURATION, default="1s", show_default=True, help="How often the view is renewed.")
@click.option("--reload", "reloads", is_flag=True, help="Start again when a Python file of the app's folder changes.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Lines for people, or JSON objects [default: text].")
def command(
    app: str | None,
    url: str | None,
    queues: tuple[str, ...] | None,
    concurrency: int | None,
    functions: tuple[str, ...],
    port: int,
    server: bool,
    every: timedelta,
    reloads: bool,
    log_format: str | None,
) -> None:
    """Run APP on this machine: worker, janitor, server and a live view in one process.

    The store's schema is created or updated first. Ctrl-C drains and hands back unfinished jobs; a second Ctrl-C does
    not wait for running jobs.
    """
    if reloads:
        raise SystemExit(reload(app))
    follow_reloader()
    target = must_have_app(
        resolve(app=app, url=url, create=True, queues=queues, concurrency=concurrency, log_format=log_format)
    )
    background = [_function(spec) for spec in functions]
    # The view shows failures with their reasons. On a pipe, each failure is a log line.
    _log(target)
    run_long(_dev(target, background, max(every.total_seconds(), 0.1), port if server else None))


def _log(target: Target) -> None:
    settings = target.settings
    quiet = "error" if on_terminal() else "warning"
    level = settings.log_level if "log_level" in settings.sources else quiet
    logs.configure(level, settings.log_format, worker=logs.own_name(), plain=True)


def _function(spec: str) -> Background:
    function = load_object(dotted(spec), "--with")
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"--with {spec}: must be an async def without arguments")
    return cast("Background", function)


async def _dev(target: Target, background: list[Background], every: float, port: int | None) -> None:
    from headrace.store.remarks import log_remarks
    from headrace.worker import Worker

    assert target.app is not None  # The caller has checked this.
    store = target.connect()
    try:
        await store.migrate()
        await store.open()
        log_remarks(store)
        worker = Worker(
            target.app.tasks,
            store,
            target.settings,
            duties=target.app.duties,
        )
        stop = _listen(worker)
        async with _serving(target.app, store, port) as address, worker:
            served = (f"{address}/",) if address else ()
            title = ("headrace dev", f"{target.settings.app} on {target.shown_url}", *served, "Ctrl-C drains and ends")
            helpers = [asyncio.ensure_future(function()) for function in background]
            try:
                await _watch(store, helpers, stop, title=title, every=every)
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
            await _end(worker, target)
        _fail_with(helpers)
    finally:
        await target.app.aclose()
        await store.close()


@asynccontextmanager
async def _serving(app: Headrace, store: Store, port: int | None) -> AsyncGenerator[str | None, None]:
    """The server beside the worker. None: it cannot run."""
    if port is None:
        yield None
        return
    missing = [name for name in ("starlette", "uvicorn", "httptools") if find_spec(name) is None]
    if missing:
        say(f"no server, which needs {', '.join(missing)}: pip install 'headrace[server]', or --no-server")
        yield None
        return
    from headrace.server import ServerSettings, asgi
    from headrace.server.http.listener import alongside

    settings = ServerSettings(port=port, tidy=False, drain=1)
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(alongside(asgi(app, settings=settings, store=store), settings))
        except OSError:
            say(f"port {port} is taken, so there is no server this time: --port chooses another")
            address = None
        yield address


def _listen(worker: Worker) -> asyncio.Event:
    """An event that the first signal sets; a second Ctrl-C or TERM hurries the worker, a closed terminal does not."""
    stop = asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            worker.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard)
    on_hangup(stop.set)
    return stop


async def _watch(
    store: Store, helpers: Sequence[asyncio.Future[object]], stop: asyncio.Event, *, title: Sequence[str], every: float
) -> None:
    """Show the view until stopped, or until a helper fails."""
    from headrace.cli.view import JOBS, screen

    board = Board()
    stopped = asyncio.ensure_future(stop.wait())
    try:
        with screen(*title) as draw:
            while not stop.is_set() and not _failed(helpers):
                await board.look(store, jobs=JOBS if on_terminal() else 0)
                draw(board)
                waiting: list[asyncio.Future[Any]] = [stopped, *(helper for helper in helpers if not helper.done())]
                await asyncio.wait(waiting, timeout=every, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()


def _failed(helpers: Sequence[asyncio.Future[object]]) -> list[BaseException]:
    ended = [helper for helper in helpers if helper.done() and not helper.cancelled()]
    return [error for helper in ended if (error := helper.exception()) is not None]


def _fail_with(helpers: Sequence[asyncio.Future[object]]) -> None:
    for error in _failed(helpers):
        raise click.ClickException(f"--with: {type(error).__name__}: {error}") from error


async def _end(worker: Worker, target: Target) -> None:
    before = worker.counters.released
    say(f"draining: {named(worker.running)} running; Ctrl-C again to hand them back at once")
    await worker.drain()
    counters = worker.counters
    say(
        f"done: {counters.succeeded:,} succeeded, {counters.failed:,} failed, {counters.snoozed:,} snoozed; "
        f"{named(counters.released - before)} handed back. What waits stays in {target.shown_url}"
    )
    say(f"look again: {', '.join(f'headrace {verb}{_where(target)}' for verb in ('jobs list', 'dead list', 'stats'))}")


def _where(target: Target) -> str:
    """What a command must be given to find the same store."""
    return f" --url {target.shown_url}" if target.settings.sources.get("url") == "flag" else ""
