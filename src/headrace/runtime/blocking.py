"""Sync twins of async verbs: `cancel = blocking(acancel)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from headrace.runtime.portal import portal

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def blocking(verb: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """The method for sync code: runs the async verb of the same object in the portal, and blocks until it answers.

    The twin takes the name without the first `a`. It has the signature and the docstring of the async verb.
    """
    source = cast("FunctionType", verb)
    name = source.__name__
    if not name.startswith("a"):
        raise TypeError(f"{name}: the name of an async verb begins with a, and its twin has the rest of it")
    run = portal.run

    def twin(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        # The verb is looked up by its name, so that a subclass that replaces the verb replaces the twin.
        method: Callable[P, Coroutine[Any, Any, R]] = getattr(self, name)
        return run(lambda: method(*args, **kwargs))

    # The twin gets the globals of the verb's module, because its annotations are names of that module. It has no
    # `__wrapped__`: frameworks that look through wrappers would take the twin for a coroutine function.
    code = cast("FunctionType", twin)
    sync_twin = FunctionType(code.__code__, source.__globals__, name[1:], None, code.__closure__)
    sync_twin.__qualname__ = f"{source.__qualname__.removesuffix(name)}{name[1:]}"
    sync_twin.__module__ = source.__module__
    sync_twin.__doc__ = source.__doc__
    sync_twin.__annotations__ = source.__annotations__
    sync_twin.__signature__ = inspect.signature(verb)  # type: ignore[attr-defined]  # any function may have one
    return cast("Callable[Concatenate[S, P], R]", sync_twin)
