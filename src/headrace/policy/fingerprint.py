"""Fingerprints: which failures have the same cause, whatever the data. No effects.

A bug is the exception's kind and the places the traceback leads through: the tail of each file and the function, never
a line number, an address, an id or a value. The message counts only where there is no traceback (a timeout, a dead
worker), with its numbers and quoted values taken out; then the task counts, too, because nothing else says where it was.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.model.job import Failure, Job

LENGTH = 12
_TITLE = 160
_MESSAGE = 80

# headrace raises these itself before or after user code ran, so the traceback has only frames of headrace.
_WITHOUT_PLACE = frozenset({"bad_arguments", "bad_result"})


class Fingerprint(NamedTuple):
    """One cause of failures: a short stable id, and a title for display."""

    id: str
    title: str


class StackFrame(NamedTuple):
    """One place of a traceback."""

    file: str
    function: str
    own: bool
    """Whether it is the user's own code, judged by the path."""


def of_job(job: Job) -> Fingerprint:
    """The cause of a job's death: its last failure, or its note if it has none. The job comes from `get`."""
    if job.history:
        return of_failure(job.history[-1], job.task)
    note = plain(job.note or "")
    return Fingerprint(_digest("", job.task, note), _short(f"{note or 'dead'} in {job.task}", _TITLE))


def of_failure(failure: Failure, task: str) -> Fingerprint:
    """The cause of one failure of a task."""
    steps = () if failure.kind in _WITHOUT_PLACE else _steps(failure.traceback)
    frames = [step for step in steps if isinstance(step, StackFrame)]
    message = plain(failure.message)
    if not frames:
        where, parts = task, [failure.kind, task, message]
    else:
        # Each place counts once, because a loop may repeat it. The exception's own line may have been cut off.
        own = failure.kind.removeprefix("__main__.")
        places = [
            f"{step.file}:{step.function}" if isinstance(step, StackFrame) else step for step in steps if step != own
        ]
        where, parts = _where(frames), [failure.kind, *dict.fromkeys(places)]
    what = f"{failure.kind}: {_short(message, _MESSAGE)}" if message else failure.kind
    return Fingerprint(_digest(*parts), _short(f"{what} in {where}", _TITLE))


def check(text: str) -> str:
    """A fingerprint from a user's text, or a ConfigError."""
    fingerprint = text.strip().lower()
    if not re.fullmatch(rf"[0-9a-f]{{{LENGTH}}}", fingerprint):
        raise ConfigError(
            f"{text[:60]!r} is not a fingerprint: {LENGTH} hex digits, as `headrace dead list --group` shows"
        )
    return fingerprint


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()[:LENGTH]


# ── tracebacks ───────────────────────────────────────────────────────────────

_HEADER = "Traceback (most recent call last):"
# Exception groups draw a tree to the left of their lines.
_FRAME = re.compile(r'[\s|+]*File "(?P<file>.+)", line \d+, in (?P<function>.+?)\s*')
_RAISED = re.compile(r"[\s|+]*(?P<kind>[^\W\d][\w.]*)(?:: .*)?\s*")
_CUT = re.compile(r"… [\d,]+ bytes left out …")
"""The middle of a long traceback is missing (see `worker.outcome_of.bounded`)."""
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
"""Newer versions of Python inline comprehensions, so the same failure has no such frame there."""


class _ReadingState(NamedTuple):
    """Where in a traceback a line stands."""

    inside: bool = False
    """Below a header."""
    whole: bool = False
    """Nothing above was left out, so that the indent tells where the exception ends."""
    skip: bool = False
    """The next line may be incomplete."""
    indent: int = 0


_Steps = tuple[StackFrame | str, ...]
"""Places, and the kinds of the raised exceptions (a chain has several)."""


def _steps(trace: str) -> _Steps:
    """The last line has the message. All lines above it are usually the same for every failure of a bug, and read once."""
    last = trace.rfind("\n", 0, -1) + 1
    above, state = _steps_above(trace[:last])
    return above + _read(trace[last:], state)[0]


@lru_cache(maxsize=256)
def _steps_above(text: str) -> tuple[_Steps, _ReadingState]:
    return _read(text, _ReadingState())


def _read(text: str, state: _ReadingState) -> tuple[_Steps, _ReadingState]:
    """The steps of these lines of a traceback, and the state for the lines below."""
    inside, whole, skip, indent = state
    steps: list[StackFrame | str] = []
    for line in text.splitlines():
        if skip:
            skip = False
        elif line.rstrip().endswith(_HEADER):
            inside = whole = True
            indent = _depth(line)
        elif _CUT.fullmatch(line):
            # Frames or a message may follow, and only frames count.
            inside, whole, skip = True, False, True
        elif not inside:
            continue
        elif match := _FRAME.fullmatch(line):
            if match["function"] not in _COMPREHENSIONS:
                steps.append(_frame(match["file"], match["function"]))
        elif whole and _depth(line) <= indent:
            # The end of this exception. The lines up to the next header are its message, which is data.
            inside = False
            if match := _RAISED.fullmatch(line):
                steps.append(match["kind"])
    return tuple(steps), _ReadingState(inside, whole, skip, indent)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" |+"))


def _frame(file: str, function: str) -> StackFrame:
    path = file.replace("\\", "/")
    own = "/site-packages/" not in path and not re.search(r"/lib/python\d|/dist-packages/|^<frozen", path)
    _, packaged, inside = path.rpartition("-packages/")
    tail = inside if packaged else "/".join(path.rsplit("/", 2)[-2:])
    *folders, name = tail.split("/")
    return StackFrame(
        "/".join([*map(_folder, folders), name if not name.startswith("<") else plain(name)]), function, own
    )


_RELEASE = re.compile(r"\d{4,}|(?=[0-9a-f]*\d)[0-9a-f]{7,}|^tmp\w{8}$|\d+(?:[-_.]\d+)+")


def _folder(name: str) -> str:
    """A folder named after a release or a time is left out. `v1` is kept."""
    return _RELEASE.sub("#", name)


def _where(frames: list[StackFrame]) -> str:
    """The last place in the user's own code, for display."""
    frame = next((frame for frame in reversed(frames) if frame.own), frames[-1])
    return f"{frame.function} ({frame.file})"


# ── messages ─────────────────────────────────────────────────────────────────

_VALUES = re.compile(
    r"""
    (?<!\w)[bru]{0,2}(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|“[^”]*”|«[^»]*»)(?!\w)    # quoted
    | [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}                                     # a UUID
    | 0[xX][0-9a-fA-F]+                                                                        # an address
    | (?<![0-9A-Za-z])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}(?![0-9A-Za-z])                         # a digest, an id
    | (?<![\w.])[-+]?(?:nan|inf)(?!\w)
    | (?:(?<!\w)[-+])?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?                                        # a number, a time
    """,
    re.VERBOSE | re.DOTALL,
)


def plain(message: str) -> str:
    """A message without its values, on one line."""
    return _short(" ".join(_VALUES.sub("#", message).split()), _TITLE)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
