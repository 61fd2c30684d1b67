"""Tracebacks as text. Each place in the code is formatted once, because many jobs may fail there."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import CodeType, TracebackType

_HERE = Path(__file__).parent
_OWN_FRAMES = (
    str(_HERE),
    # Its middleware surrounds a task. It must not change the fingerprint of the task's failures.
    str(_HERE.parent / "integrations" / "sentry.py"),
)
_HEADER = "Traceback (most recent call last):\n"
_REMEMBERED = 1024
"""Number of places in the code. Only a program that generates code at run time fails at more."""
_SHOWS_MORE = (NameError, AttributeError, ImportError, SyntaxError, BaseExceptionGroup)
"""For most of these, Python adds suggestions to the message, which it computes from the frames. A group has other exceptions."""

_frames: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""(id of the code, instruction) → the code, which keeps its id in use, and the frame's lines."""


def text_of(error: BaseException, message: str | None) -> str:
    """The result of `traceback.format_exception`, from the first frame outside the worker.

    `message`: the exception's own text; None: it cannot be read.
    """
    trace = _user_part(error.__traceback__)
    if trace is None or message is None or not _is_plain(error) or (stack := _stack(error, trace)) is None:
        return "".join(traceback.TracebackException(type(error), error, trace).format())
    return _HEADER + stack + _last_line(error, message)


def _is_plain(error: BaseException) -> bool:
    """Whether its text consists of its frames, its type and its message only."""
    return (
        error.__cause__ is None
        and (error.__context__ is None or error.__suppress_context__)
        and not isinstance(error, _SHOWS_MORE)
        and not hasattr(error, "__notes__")
    )


def _stack(error: BaseException, trace: TracebackType) -> str | None:
    """The lines of all frames; None: Python may shorten them, because a function calls itself."""
    lines: list[str] = []
    last: CodeType | None = None
    place: TracebackType | None = trace
    while place is not None:
        code = place.tb_frame.f_code
        if code is last:
            return None
        key = (id(code), place.tb_lasti)
        known = _frames.get(key)
        if known is None:
            known = _frames[key] = (code, _format(error, place))
            if len(_frames) > _REMEMBERED:
                _frames.clear()
        lines.append(known[1])
        last, place = code, place.tb_next
    return "".join(lines)


def _last_line(error: BaseException, message: str) -> str:
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{name}: {message}\n" if message else f"{name}\n"


def _format(error: BaseException, place: TracebackType) -> str:
    return "".join(traceback.TracebackException(type(error), error, place, limit=1, compact=True).stack.format())


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
        trace = trace.tb_next
    return trace
