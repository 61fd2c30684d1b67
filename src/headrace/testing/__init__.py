"""A kit for tests of tasks: jobs in memory, a clock that tests move, faults on purpose, and assertions.

How it works:

1. `use_memory(app)` gives an app of any URL a fresh memory store and a clock. Code that enqueues is not changed.
2. The memory store is the specification of all stores, so options, limits, keys and schedules behave as in production.
3. The kit has no slots and no services. It claims one job, runs it in the caller, and settles it by the worker's own rules.
4. The logic is written once, as scripts (`script.py`), and played for sync code and for async code.
5. The store's side runs in the portal's thread. A task runs in the thread or event loop of the test, so that it shares its
   database transaction.
6. `app.inline()` runs each job before its enqueue call returns; `drain` runs what is ready; nothing runs by itself. The
   app's hooks for the start and the end of a worker run around both (`lifespan.py`).
7. Time is the clock's alone: `drain` first does what workers do when time has passed.
8. A fault happens once to each job, at a fixed place of its attempt.
9. A job with `tx=` is stored when Django or SQLAlchemy commits that transaction.
10. The pytest plugin (`plugin.py`) only wraps this. Importing it imports nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing import faults
    from headrace.testing.assertions import EnqueuedJob, assert_enqueued, assert_not_enqueued, enqueued
    from headrace.testing.clock import FakeClock
    from headrace.testing.draining import adrain, drain
    from headrace.testing.idempotent import aassert_idempotent, assert_idempotent
    from headrace.testing.inlining import inline
    from headrace.testing.stand_in import StandIn, use_memory
    from headrace.testing.steps import Ran

__all__ = [
    "EnqueuedJob",
    "FakeClock",
    "Ran",
    "StandIn",
    "aassert_idempotent",
    "adrain",
    "assert_enqueued",
    "assert_idempotent",
    "assert_not_enqueued",
    "drain",
    "enqueued",
    "faults",
    "inline",
    "use_memory",
]

# The block above tells type checkers where each name is, and this table tells the interpreter.
_NAMES = {
    "clock": ("FakeClock",),
    "draining": ("adrain", "drain"),
    "assertions": ("EnqueuedJob", "assert_enqueued", "assert_not_enqueued", "enqueued"),
    "idempotent": ("aassert_idempotent", "assert_idempotent"),
    "inlining": ("inline",),
    "stand_in": ("StandIn", "use_memory"),
    "steps": ("Ran",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # A type checker that sees `__getattr__` accepts every name.

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "faults":
            return import_module("headrace.testing.faults")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"headrace.testing.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations"})
