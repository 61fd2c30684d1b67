"""`headrace serve`: an app's queue over HTTP."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from headrace.cli.output import say
from headrace.cli.target import Target, app_argument, must_have_app, resolve, run, url_option
from headrace.errors import ConfigError
from headrace.runtime import logs
from headrace.runtime.loopback import on_this_machine
from headrace.settings import LOG_FORMATS, LOG_LEVELS

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@app_argument
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; any other needs a token first.")
@click.option("--port", type=click.IntRange(0, 65535), default=8200, show_default=True)
@click.option("--access-log/--no-access-log", default=True, help="One line of JSON per request on stdout.")
@click.option("-l", "--log-level", type=click.Choice(LOG_LEVELS), help="[default: info].")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Lines for people, or JSON objects [default: text].")
def command(
    app: str | None,
    url: str | None,
    host: str,
    port: int,
    access_log: bool,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Serve APP over HTTP until told to stop: jobs in, workers elsewhere, operators; / is the dashboard, /docs shows the calls.

    Without any token it listens on this machine only. TERM or Ctrl-C finishes what was accepted.
    """
    target = must_have_app(resolve(app=app, url=url, create=True, log_level=log_level, log_format=log_format))
    _import_server()
    _check(target, host)
    _log(target, access_log=access_log)
    from headrace.server import ServerSettings, serve

    assert target.app is not None  # `must_have_app` has checked this.
    shown = f"[{host}]" if ":" in host else host

    def listening(port: int) -> None:
        say(f"headrace serve — {target.settings.app} on {target.shown_url} — http://{shown}:{port}/ — Ctrl-C ends")

    serve(target.app, ServerSettings(host=host, port=port, access_log=access_log), listening=listening)


def _import_server() -> None:
    try:
        import httptools
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"the server needs {error.name}: pip install 'headrace[server]'") from None
    del httptools, starlette, uvicorn


def _check(target: Target, host: str) -> None:
    """Check that the store can be opened, and that a server without tokens listens on this machine only."""

    async def look(store: Store) -> bool:
        from headrace.operate import tokens

        await store.now()
        return await tokens.any(store)

    guarded = run(target.with_store(look))
    if not guarded and not on_this_machine(host):
        raise ConfigError(
            f"--host {host} makes the server reachable from other machines, and there is no token: make one with "
            "`headrace tokens create NAME --scope enqueue`, or leave out --host to listen on this machine only"
        )


def _log(target: Target, *, access_log: bool) -> None:
    logs.configure(target.settings.log_level, target.settings.log_format)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    access = logging.getLogger("headrace.access")
    access.propagate = False
    access.setLevel(logging.INFO if access_log else logging.CRITICAL)
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(lines)
