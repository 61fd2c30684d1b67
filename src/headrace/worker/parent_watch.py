"""How a process of a worker loads its app, and how it ends with its parent."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.errors import ConfigError
from headrace.runtime.sighup import pass_on

if TYPE_CHECKING:
    from headrace.task.task import Task
    from headrace.worker.duties import Duties

_PR_SET_PDEATHSIG = 1


class App(Protocol):
    """What a worker needs of an app."""

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]: ...

    @property
    def duties(self) -> Duties: ...


def load_app(path: str) -> App:
    """The app at `package.module:attribute`."""
    module_name, _, names = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ConfigError(
            f"no module {module_name!r} for the app {path!r}: is it installed, or in this folder?"
        ) from None
    for name in (names or "app").split("."):
        try:
            target = getattr(target, name)
        except AttributeError:
            raise ConfigError(
                f"module {module_name!r} has no {names or 'app'!r}: name the app as package.module:app"
            ) from None
    if not isinstance(getattr(target, "tasks", None), Mapping):
        raise ConfigError(f"{path!r} is not a Headrace app")
    return cast("App", target)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Receive that signal when the parent dies, where the kernel supports it; at once, if the parent is dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def spawn(module: str, *files: int) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs `module` with these open files and the same import path."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, files)],
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        process_group=0,  # Ctrl-C reaches only the parent: it would kill a starting child
    )
    pass_on(child)
    return child


def settle_in(path: list[str], pythonpath: str | None) -> None:
    """In the child: use the parent's import path, and restore the environment for processes that the tasks start."""
    sys.path[:] = path
    if pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = pythonpath
