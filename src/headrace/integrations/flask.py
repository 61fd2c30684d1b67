"""Flask: an extension whose tasks run in the application's context, `flask headrace …`, and jobs that wait for a commit."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from flask import Flask
from flask.cli import ScriptInfo

from headrace.app import Headrace
from headrace.errors import ConfigError
from headrace.task.task import Decorator

if TYPE_CHECKING:
    from headrace.task.call import JobCall

    app: Headrace
    """The app of the application that FLASK_APP names. Workers import it as `headrace.integrations.flask:app`."""

_HERE = f"{__name__}:app"
_loaded: list[ScriptInfo] = []
"""The application that the command `flask` has loaded in this process."""


class FlaskHeadrace(Headrace):
    """A `Headrace` that knows its Flask application: tasks run inside `app_context()`, wherever they run."""

    def __init__(self, flask_app: Flask | None = None, url: str | None = None, **options: Any) -> None:
        """`url` overrides the configuration's HEADRACE_URL, which overrides the environment's."""
        super().__init__(url, **options)
        self._flask: Flask | None = None
        self._own_url = url
        if flask_app is not None:
            self.init_app(flask_app)

    def init_app(self, flask_app: Flask) -> None:
        """For application factories."""
        if "headrace" in flask_app.extensions:
            raise ConfigError("this Flask application has a headrace already: call init_app once")
        url: str | None = cast("dict[str, Any]", flask_app.config).get("HEADRACE_URL")
        if url is not None and self._own_url is None:
            self.settings = self.settings.replace(url=url)
        self._flask = flask_app
        flask_app.extensions["headrace"] = self
        flask_app.cli.add_command(_command)

    @property
    def flask(self) -> Flask:
        """The application; a ConfigError before `init_app`."""
        if self._flask is None:
            raise ConfigError("no Flask application yet: call init_app, and start workers by `flask headrace worker`")
        return self._flask

    if not TYPE_CHECKING:  # The type of Headrace.task counts.

        def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
            if function is not None:
                return super().task(self._in_context(function), **options)
            declare = super().task(**options)
            return Decorator(lambda function: declare(self._in_context(function)))

    def _in_context(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_context_async(*args: Any, **kwargs: Any) -> Any:
                with self.flask.app_context():
                    return await function(*args, **kwargs)

            return in_context_async
        if not inspect.isfunction(function):
            return function  # The app raises the error for an object that cannot be a task.

        @functools.wraps(function)
        def in_context(*args: Any, **kwargs: Any) -> Any:
            with self.flask.app_context():
                return function(*args, **kwargs)

        return in_context

    def after_commit(self, session: Any, *calls: JobCall[Any]) -> None:
        """Enqueue `task.job(…)`s once this SQLAlchemy session commits, never if it rolls back.

        For stores elsewhere, such as Redis. A process that dies right after its commit loses the jobs. If the store is
        in the session's own database, `task.using(tx=session).enqueue(…)` loses nothing.
        """
        from headrace.integrations.sessions import waiting_for

        waiting_for(session, self).extend(calls)


def __getattr__(name: str) -> Any:
    """`app`, made when a worker process asks for it."""
    if name != "app":
        raise AttributeError(name)
    info = _loaded[-1] if _loaded else ScriptInfo(app_import_path=os.environ.get("FLASK_APP"))
    extension = info.load_app().extensions.get("headrace")
    if not isinstance(extension, FlaskHeadrace):
        raise ConfigError("the application that FLASK_APP names has no headrace: call FlaskHeadrace.init_app(it)")
    return extension


@click.command(
    "headrace",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Everything the command headrace does, for this application: `flask headrace worker`.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(context: click.Context, args: tuple[str, ...]) -> None:
    from headrace.cli.root import root

    info = context.ensure_object(ScriptInfo)
    if info.app_import_path is not None:
        # Worker processes load the application by this name.
        os.environ["FLASK_APP"] = str(info.app_import_path)
    _loaded.append(info)
    os.environ.setdefault("HEADRACE_APP", _HERE)
    cast("Any", root).main(list(args), prog_name="flask headrace")
