"""Errors that name the right call to code that was written for another task queue: `add.delay(2, 3)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

_ENQUEUE: Final = "{bound}.enqueue(…)"
_AENQUEUE: Final = "await {bound}.aenqueue(…)"
_USING: Final = '{task}.using(delay="5m").enqueue(…), with options in using() and arguments in enqueue()'
_JOB: Final = "{bound}.job(…), and enqueue it with app.enqueue_many"
_CALL: Final = "{task}(…), which runs the function here"

CALLS: Final = {
    "delay": _ENQUEUE,
    "send": _ENQUEUE,
    "defer": _ENQUEUE,
    "kiq": _AENQUEUE,
    "defer_async": _AENQUEUE,
    "apply_async": _USING,
    "send_with_options": _USING,
    "configure": _USING,
    "schedule": _USING,
    "s": _JOB,
    "si": _JOB,
    "signature": _JOB,
    "message": _JOB,
    "apply": _CALL,
    "call_local": _CALL,
}
"""Methods of tasks in other queues, and what to write here."""


class _Hint:
    """Raises AttributeError when it is read, so the attribute does not exist.

    A descriptor costs nothing when other attributes are read. `__getattr__` would make each of them slower, because the
    interpreter does not specialise attributes of a class that has it. An attribute of the instance wins over the hint.
    """

    def __init__(self, name: str, right: str) -> None:
        self._name = name
        self._right = right

    def __get__(self, task: CallHints | None, owner: type[CallHints]) -> Any:
        if task is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._name!r}")
        name, bound = task.in_code()
        right = self._right.format(task=name, bound=bound)
        raise AttributeError(f"headrace tasks have no {self._name}(): write {right}", name=self._name, obj=task)


class CallHints(ABC):
    """The base of objects that enqueue. Type checkers do not see the hints and report the attributes as missing."""

    __slots__ = ()

    @abstractmethod
    def in_code(self) -> tuple[str, str]:
        """How code names the task, and the task with its options."""

    def __dir__(self) -> Iterable[str]:
        own: dict[str, Any] = getattr(self, "__dict__", {})
        return [name for name in super().__dir__() if name not in CALLS or name in own]


for _name, _right in CALLS.items():
    setattr(CallHints, _name, _Hint(_name, _right))
