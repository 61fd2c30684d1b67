"""Which functions can be tasks, where each runs, and its default name."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.model.lane import check_task_name

Executor = Literal["async", "thread", "process"]


def check_function(function: object) -> bool:
    """Whether it is async. Raises ConfigError if it cannot be a task."""
    if (
        isinstance(function, staticmethod | classmethod | property)
        or inspect.isclass(function)
        or not callable(function)
    ):
        raise ConfigError("a task is a function: decorate a def or async def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("a generator cannot be a task: return a list, or enqueue one job per item")
    return inspect.iscoroutinefunction(function)


def pick_executor(function: Callable[..., Any], executor: Executor | None, *, is_async: bool) -> Executor:
    """Where it runs, by the user's argument. Raises ConfigError if it cannot run there."""
    if executor is None:
        return "async" if is_async else "thread"
    if executor == "async" and not is_async:
        raise ConfigError(
            'executor = "async" needs an async def; leave executor out to run a plain function in a thread'
        )
    if executor == "thread" and is_async:
        raise ConfigError(
            'executor = "thread" needs a plain def; leave executor out to run an async def in the event loop'
        )
    qualname = getattr(function, "__qualname__", "<lambda>")
    if executor == "process" and ("<locals>" in qualname or "<lambda>" in qualname):
        raise ConfigError('executor = "process" needs a function that its process can import: move it to module level')
    return executor


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`. Raises ConfigError where that is not a stable name."""
    qualname = getattr(function, "__qualname__", "<unknown>").replace("<locals>.", "")
    if "<" in qualname:
        raise ConfigError('it has no name of its own: give one with name="…"')
    name = f"{_module(function)}.{qualname}"
    try:
        return check_task_name(name)
    except ConfigError as error:
        raise ConfigError(f'{error}; give one with name="…"') from None


def _module(function: Callable[..., Any]) -> str:
    """A script that runs as `__main__` gives its tasks the names that a worker that imports it would."""
    module = getattr(function, "__module__", None) or "tasks"
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    stem = Path(getattr(main, "__file__", None) or "").stem
    return stem if re.fullmatch(r"\w+", stem, re.ASCII) else "main"
