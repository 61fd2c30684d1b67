"""What a command works on: the app, its settings and its store, from flags, environment and pyproject.toml."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from headrace.errors import ConfigError
from headrace.model.masked_url import mask_url
from headrace.settings import Settings

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.operate.operations import Operations
    from headrace.store.contract import Store
    from headrace.task.task import Task

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_DOTTED = r"[A-Za-z_][\w.]*"


@dataclass(frozen=True, slots=True)
class Target:
    """What a command works on."""

    settings: Settings
    app: Headrace | None
    create: bool = False
    """Whether a missing SQLite file may be created."""

    @property
    def shown_url(self) -> str:
        """The store's URL without its password."""
        return mask_url(self.settings.url)

    def task(self, name: str) -> Task[..., Any] | None:
        """The app's task of that name, if there is an app and it has one."""
        return self.app.tasks.get(name) if self.app is not None else None

    def connect(self) -> Store:
        """The store, not yet opened."""
        if not self.create:
            self._must_exist()
        if self.app is not None and self.app.settings.url == self.settings.url:
            return self.app.connect()
        from headrace.store import connect

        return connect(self.settings.store_url)

    def must_agree(self) -> None:
        """Refuse to run an app on a store other than its own, because its jobs would be split between the two."""
        if self.app is not None and self.app.settings.url != self.settings.url:
            raise ConfigError(
                f"the app names its own store, {mask_url(self.app.settings.url)}, and --url another: leave out --url, "
                "or write Headrace() without a URL in the app"
            )

    def _must_exist(self) -> None:
        # A mistyped path must not create an empty file without jobs.
        url = urlsplit(self.settings.url)
        path = Path(unquote(url.path[1:]))
        if url.scheme == "sqlite" and not path.exists():
            hint = "" if "url" in self.settings.sources else "; give --url, --app, or set HEADRACE_URL"
            raise ConfigError(f"there is no file {path}: `headrace migrate --url sqlite:///{path}` makes it{hint}")

    async def with_store(self, use: Callable[[Store], Awaitable[T]]) -> T:
        """Open the store, use it, close it."""
        store = self.connect()
        try:
            await store.open()
            return await use(store)
        finally:
            await store.close()

    def operate(self, act: Callable[[Operations], Awaitable[T]]) -> T:
        """Run operator verbs on the store, as the user of this process, and answer what they answer."""
        from headrace.operate.operations import Operations

        return run(self.with_store(lambda store: act(Operations(store, task_of=self.task))))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a short command's coroutine in asyncio's own loop, which needs no further import."""
    return asyncio.run(main)


def run_long(main: Coroutine[Any, Any, T]) -> T:
    """Run a long-lived command's coroutine: uvloop where it is installed."""
    from headrace.runtime.event_loop import run as run_fast

    return run_fast(main)


def must_have_app(target: Target) -> Target:
    """The target of a command that runs tasks."""
    if target.app is None:
        raise ConfigError("no app is named: give APP as package.module:app, set HEADRACE_APP, or [tool.headrace] app")
    target.must_agree()
    return target


def resolve(*, app: str | None = None, url: str | None = None, create: bool = False, **flags: Any) -> Target:
    """The target that flags, environment and pyproject.toml name."""
    spec = None if app is None else dotted(app)
    settings = Settings.load(app=spec, url=url, **flags)
    if not settings.app:
        return Target(settings, None, create)
    if url is not None:
        # Set before the import, so that an app without a store of its own, and its child processes, use this one.
        os.environ["HEADRACE_URL"] = url
    name = settings.app if ":" in settings.app else only_app(settings.app)
    loaded = load_app(name)
    own = loaded.settings.replace(app=name, url=url, **flags)
    # The app may not know its own name yet. These settings have the name and its origin.
    return Target(replace(own, sources={**own.sources, "app": settings.sources["app"]}), loaded, create)


def dotted(spec: str) -> str:
    """`examples/demo.py:app` as `examples.demo:app`; anything else as it is."""
    file, colon, name = spec.partition(":")
    if not file.endswith(".py"):
        return spec
    parts = Path(file).with_suffix("").parts
    if Path(file).is_absolute() or ".." in parts:
        raise ConfigError(
            f"APP = {spec!r}: the file must lie below the current folder; go there, or write package.module:app"
        )
    return ".".join(parts) + colon + name


def load_app(spec: str) -> Headrace:
    """Import `package.module:app`. Raises ConfigError, which says what is wrong."""
    from headrace.app import Headrace

    loaded = load_object(spec, "APP")
    if isinstance(loaded, Headrace):
        return loaded
    near = [name for name, value in vars(sys.modules[spec.partition(":")[0]]).items() if isinstance(value, Headrace)]
    hint = f"did you mean {spec.partition(':')[0]}:{near[0]}?" if near else "it must be a Headrace()"
    raise ConfigError(f"APP = {spec!r} is of type {type(loaded).__qualname__}: {hint}")


def only_app(module_name: str) -> str:
    """`package.module:app` for a module that has one Headrace. Raises ConfigError, which names the apps if it has more."""
    from headrace.app import Headrace

    if not re.fullmatch(_DOTTED, module_name):
        raise ConfigError(f"APP = {module_name!r}: write package.module:name, e.g. shop.tasks:app")
    module = vars(_import(module_name, "APP"))
    names = {id(value): f"{module_name}:{name}" for name, value in module.items() if isinstance(value, Headrace)}
    match list(names.values()):
        case [name]:
            return name
        case []:
            raise ConfigError(f"APP = {module_name!r}: {module_name} has no Headrace(): write package.module:app")
        case several:
            raise ConfigError(f"APP = {module_name!r} has several apps: write {' or '.join(several)}")


def load_object(spec: str, what: str) -> object:
    """The object that `package.module:name` names."""
    module_name, _, path = spec.partition(":")
    if not re.fullmatch(_DOTTED, module_name) or not re.fullmatch(_DOTTED, path):
        raise ConfigError(f"{what} = {spec!r}: write package.module:name, e.g. shop.tasks:app")
    loaded: object = _import(module_name, what)
    for name in path.split("."):
        try:
            loaded = getattr(loaded, name)
        except AttributeError:
            raise ConfigError(f"{what} = {spec!r}: {module_name} has no {path!r}") from None
    return loaded


def _import(name: str, what: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        # Only if the module itself is missing. A missing import inside it is reported below.
        if missing.name and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise ConfigError(
                f"{what}: no module {missing.name!r} in {here} or among the installed packages: "
                "run headrace in the folder that holds it"
            ) from None
        raise ConfigError(f"{what}: importing {name} failed: {missing}{_place(missing)}") from missing
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what}: importing {name} failed: {type(error).__name__}: {error}{_place(error)}") from error


def _place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""


# ── options that many commands share ─────────────────────────────────────────

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
app_option = click.option("-A", "--app", metavar="APP", help="package.module:app [env: HEADRACE_APP].")
url_option = click.option(
    "--url", "--store", "url", help="The store, or a server: https://TOKEN@host [env: HEADRACE_URL]."
)


def app_argument(command: Command) -> Command:
    """APP as an argument or with -A, for commands that run or read an app; they get it as `app`."""

    @click.argument("app", required=False)
    @click.option("-A", "--app", "named", metavar="APP", help="The same as APP [env: HEADRACE_APP].")
    @wraps(command)
    def with_app(app: str | None, named: str | None, **options: Any) -> Any:
        if app is not None and named is not None:
            raise click.UsageError("APP or --app, not both", click.get_current_context(silent=True))
        return command(app=named if app is None else app, **options)

    decorated: Any = with_app
    return decorated  # type: ignore[no-any-return]  # click's decorators keep the function


def store_command(*, create: bool = False) -> Callable[[Command], Command]:
    """A command that works on a store, with or without an app; it gets its `target`."""

    def decorate(command: Command) -> Command:
        @app_option
        @url_option
        @wraps(command)
        def with_target(app: str | None, url: str | None, **options: Any) -> Any:
            return command(target=resolve(app=app, url=url, create=create), **options)

        decorated: Any = with_target
        return decorated  # type: ignore[no-any-return]  # click's decorators keep the function

    return decorate
