"""How headrace's own processes write their log: on stderr, one line per event, as text or as JSON."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

TEXT, JSON = "text", "json"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has. All other attributes were given as `extra`, or belong to the job that runs."""
_FIRST = ("job_id", "task", "attempt", "tenant", "queue", "worker", "trace_id")


class LogConfig(NamedTuple):
    """How this process logs, for the processes that it starts."""

    level: str
    format: str
    worker: str = ""


Mask = Callable[[str], str]

_job_fields: Callable[[], Mapping[str, object]] = dict
_job_mask: Callable[[], Mask | None] = type(None)
_config: LogConfig | None = None
_formatter = logging.Formatter()


def bind(fields: Callable[[], Mapping[str, object]], mask: Callable[[], Mask | None]) -> None:
    """Add what `fields` returns to each line that a task logs, and mask the line with what `mask` returns."""
    global _job_fields, _job_mask  # the package of tasks, which imports this one, binds its functions once
    _job_fields, _job_mask = fields, mask


class JobLogFilter(logging.Filter):
    """Gives each line that a task logs the fields `job_id`, `task`, `attempt`, `tenant`, `queue`, `worker` and `trace_id`.

    It also masks the values that the task redacts. headrace's own processes have it. An app that sets up its own logging adds it to its handlers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to the record, and mask it. It always passes."""
        # headrace masks its own lines where it writes them.
        if record.name.partition(".")[0] != "headrace" and (mask := _job_mask()) is not None:
            _mask(record, mask)
        known = record.__dict__
        for name, value in _job_fields().items():
            # A field that the line itself has wins.
            known.setdefault(name, value)
        return True


def _mask(record: logging.LogRecord, mask: Mask) -> None:
    """Mask the message, the traceback and everything that the line was given as `extra`."""
    try:
        text = record.getMessage()
    except Exception:  # noqa: BLE001  # the arguments do not fit: the handler reports it
        return
    record.msg, record.args = mask(text), ()
    if record.exc_info:
        record.exc_text = mask(record.exc_text or _formatter.formatException(record.exc_info))
    if record.stack_info:
        record.stack_info = mask(record.stack_info)
    known = record.__dict__
    for name in known.keys() - _STANDARD:
        text = _shown(known[name])
        if (masked := mask(text)) != text:
            known[name] = masked


class TextFormatter(logging.Formatter):
    """One line for people. The line of a task names its job."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name of the method it replaces
        line = super().formatMessage(record)
        job = getattr(record, "job_id", None)
        if job is None or record.name.startswith("headrace."):
            return line
        task, attempt = getattr(record, "task", "?"), getattr(record, "attempt", "?")
        more = "".join(
            f", {word} {value}"
            for word, name in (("tenant", "tenant"), ("trace", "trace_id"))
            if (value := getattr(record, name, ""))
        )
        return f"{line} (job {job} of task {task}, attempt {attempt}{more})"


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for programs that collect logs."""

    def __init__(self, worker: str = "", *, light: bool = False) -> None:
        super().__init__()
        self._worker = worker
        self._encode = _encode_lightly if light else _encode

    def format(self, record: logging.LogRecord) -> str:
        own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if self._worker:
            own.setdefault("worker", self._worker)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: own.pop(name) for name in _FIRST if own.get(name) not in {None, ""}},
            "pid": record.process,
        }
        line |= {name: value for name, value in own.items() if name not in line and name not in _FIRST}
        if record.exc_info:
            line["exception"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return self._encode(line)


def _encode(line: dict[str, Any]) -> str:
    import msgspec  # not above, because the supervisor does not load it

    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except Exception:  # noqa: BLE001  # a surrogate in a text, or a value whose `str` fails: the line must not be lost
        return _encode_lightly(line)


def _encode_lightly(line: dict[str, Any]) -> str:
    """Encode without msgspec: slower, and whatever the line holds."""
    import json  # imported here, because few lines need it and each app would load it

    return json.dumps(line, default=_shown, skipkeys=True)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # whatever a user's type does
        return f"<{type(value).__qualname__}>"


def trace_id(trace: str | None) -> str:
    """The id of the trace in a `traceparent`: its second part. Empty: there is no trace."""
    return "" if trace is None else trace.partition("-")[2].partition("-")[0]


def own_name() -> str:
    """host:pid: the name of this process in logs and in `headrace workers`."""
    return f"{socket.gethostname()}:{os.getpid()}"


def current() -> LogConfig | None:
    """How `configure` set up this process. None: it did not, because this process is not one of headrace's own."""
    return _config


def configure(level: str, format: str = TEXT, *, worker: str = "", plain: bool = False, light: bool = False) -> None:
    """Set up logging, unless the app has done so.

    `worker`: the name that JSON lines carry; `plain`: short text; `light`: do not load msgspec for JSON lines.
    """
    global _config  # noqa: PLW0603  # logging is global to a process, and so is this
    _config = LogConfig(level, format, worker)
    if level.upper() != "DEBUG":
        for library in ("httpx2", "httpcore2"):
            # The client's line for each HTTP call adds nothing to headrace's own lines.
            logging.getLogger(library).setLevel(logging.WARNING)
    handler = logging.StreamHandler()
    handler.addFilter(JobLogFilter())
    if format == JSON:
        handler.setFormatter(JsonFormatter(worker, light=light))
    else:
        start = "" if plain else "%(asctime)s %(process)d "
        handler.setFormatter(
            TextFormatter(f"{start}%(levelname)-7s %(name)s: %(message)s" if start else "%(levelname)s %(message)s")
        )
    logging.basicConfig(level=level.upper(), handlers=[handler])
