"""Settings: flags override the environment, which overrides pyproject.toml, which overrides the defaults."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.masked_url import mask_url
from headrace.model.size import read_size, show_size
from headrace.policy.setting_values import check_app, check_queues, check_url, choice, number, time

if TYPE_CHECKING:
    from headrace.policy.settings_checks import DeclaredTask, SettingsProblem

PREFIX = "HEADRACE_"
_SERVICE_LINK = (
    r"HEADRACE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)
"""Variables that Kubernetes sets in every pod for a Service whose name begins with `headrace`."""
LOG_LEVELS, LOG_FORMATS = ("debug", "info", "warning", "error"), ("text", "json")


class Origin(NamedTuple):
    """One setting, its value for display, and its origin."""

    name: str
    value: str
    source: str
    """`flag`, `HEADRACE_LEASE`, `pyproject.toml` with its path, or `default`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, resolved. `Settings.load` finds the values; this class has the defaults."""

    url: str = "sqlite:///headrace.db"
    """Where jobs are stored: a SQLite file, PostgreSQL, Redis, a server, or `memory://`."""
    app: str = ""
    """`package.module:app`, for the command line."""
    queues: tuple[str, ...] = ()
    """The queues that a worker serves. By default these are all queues that the app's tasks name."""
    concurrency: int = 100
    """The slots of one worker process: the number of jobs that it runs at the same time."""
    threads: int = 16
    """The number of sync tasks that one worker process runs at the same time, never more than `concurrency`."""
    reserve: tuple[str, ...] = ()
    """Slots of each process that only some jobs may take: `high=2`, `low=1`, or `5=2` for priority 5 and up."""
    processes: int = 1
    """The number of worker processes of one `headrace worker`."""
    lease: timedelta = timedelta(seconds=15)
    """How long a worker keeps its jobs without a heartbeat. Then another worker gets them."""
    heartbeat: timedelta = timedelta(seconds=5)
    """How often a worker renews its leases. It is at most a third of `lease`."""
    poll: timedelta = timedelta(seconds=1)
    """How often an idle worker looks for jobs without a hint.

    It looks five times less often while the store can wake it, so a lost hint delays a job by at most 5 s. That is so on
    SQLite, on PostgreSQL with a listening connection, and on one Redis or Valkey server. In a fleet on another store, the
    workers that do no upkeep look five times less often, too. Where the store can wake workers, those without upkeep look
    sixty times less often.
    """
    reap: timedelta = timedelta(seconds=1)
    """How often the workers that do the upkeep of a fleet check for expired leases."""
    drain: timedelta = timedelta(seconds=25)
    """How long a stopping worker waits for its jobs before it hands them back to the store."""
    kill_grace: timedelta = timedelta(seconds=5)
    """The time between TERM and KILL for a process task that has exceeded its timeout."""
    max_jobs: int = 0
    """The number of jobs after which a worker process is replaced by a fresh one. 0: never."""
    max_memory: int = 0
    """The memory above which a worker process is replaced, for example `512MB`. 0: never."""
    max_jobs_per_child: int = 0
    """The number of jobs after which a child process of process tasks is replaced. 0: never."""
    max_memory_per_child: int = 0
    """The memory above which such a child is replaced after its job. 0: never."""
    max_payload: int = 256 * 1024
    """The largest size of one job's encoded arguments, in bytes."""
    max_result: int = 1024 * 1024
    """The largest size of one job's encoded result, in bytes. A job with a larger result ends as dead (`bad_result`)."""
    keep_done: timedelta = timedelta(days=7)
    """How long the store keeps jobs that are done or cancelled."""
    keep_dead: timedelta = timedelta(days=14)
    """How long the store keeps dead jobs. `dead_retention` of a queue overrides it."""
    keep_history: timedelta = timedelta(days=30)
    """How long the store keeps the figures of `headrace history`."""
    history_url: str = ""
    """The ClickHouse table that gets a row for every job that ends: `clickhouse://user:password@host:8123/database`."""
    key_ttl: timedelta = timedelta(days=1)
    """How long the store remembers an idempotency key."""
    webhook_secret: str = ""
    """The secret that signs webhooks, `whsec_…`. Give several, separated by commas, while one is being replaced."""
    webhook_allow: tuple[str, ...] = ()
    """Networks and host names that are not public and that webhooks may still go to, with any port."""
    log_level: str = "info"
    """The least severe messages that are logged: `debug`, `info`, `warning` or `error`."""
    log_format: Literal["text", "json"] = "text"
    """`text`, or `json`: one JSON object per line."""
    job_log_level: str = "debug"
    """The level of the log lines for the claim, the start and the end of each job."""
    trace_url: str = ""
    """The page of a trace in your tracing backend, such as `https://tempo.example/trace/{trace_id}`, for links of jobs."""
    durability: Literal["strict", "relaxed"] = "strict"
    """`strict`, or `relaxed`: a crash of the store's machine may then lose the last moments."""
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False, compare=False)
    """name → the origin of its value. Other names have their default."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.reserve and (reserved := _slots(self.reserve)) >= self.concurrency:
            raise ConfigError(
                f"reserve = {', '.join(self.reserve)} takes {reserved} of {self.concurrency} slots and leaves none for other "
                "jobs: raise concurrency, or reserve fewer"
            )

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={field.value}" for field in self.explain() if field.source != "default")
        return f"Settings({shown})"

    @classmethod
    def load(cls, *, start: Path | None = None, environ: Mapping[str, str] | None = None, **flags: Any) -> Self:
        """The settings of this process: `flags` that are not None, HEADRACE_*, `[tool.headrace]`, defaults."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        layers = (
            _from_pyproject(start or Path.cwd()),
            _from_environment(os.environ if environ is None else environ),
            _from_flags(flags),
        )
        for layer in layers:
            for name, (value, source) in layer.items():
                values[name] = _parse(name, value, source)
                sources[name] = source
        return cls(**values, sources=sources)

    def replace(self, **flags: Any) -> Self:
        """These settings with the flags that are not None in their place."""
        given = {name: _parse(name, value, source) for name, (value, source) in _from_flags(flags).items()}
        return dataclasses.replace(self, **given, sources={**self.sources, **dict.fromkeys(given, "flag")})

    @property
    def store_url(self) -> str:
        """`url` with `durability` as an option of the store, unless the URL sets that option itself."""
        scheme = self.url.partition(":")[0]
        query = self.url.partition("?")[2]
        if self.durability != "strict":
            word = _RELAXED.get(scheme)
        else:
            # SQLite and PostgreSQL are strict by default. A Redis server that is not strict would be refused, so strict
            # must be set explicitly there.
            asked = "durability" in self.sources and scheme.startswith(("redis", "valkey"))
            word = "durability=strict" if asked else None
        if word is None or f"{word.partition('=')[0]}=" in query:
            return self.url
        return f"{self.url}{'&' if query else '?'}{word}"

    @property
    def is_remote(self) -> bool:
        """Whether the store is a headrace server."""
        return self.url.startswith(("http:", "https:"))

    def explain(self) -> list[Origin]:
        """Every setting, its value (secrets masked) and where it came from."""
        return [Origin(name, _show(name, getattr(self, name)), self.sources.get(name, "default")) for name in NAMES]

    def problems(self, tasks: Mapping[str, DeclaredTask] | None = None) -> list[SettingsProblem]:
        """Findings about these settings with these tasks."""
        from headrace.policy.settings_checks import advise

        return advise(self, tasks or {})


_RELAXED = {"sqlite": "sync=normal", **dict.fromkeys(("postgresql", "postgres"), "synchronous_commit=off")}

NAMES = tuple(field.name for field in dataclasses.fields(Settings) if field.name != "sources")


# ── checks: one per kind of value, run however a setting was given ──────────

# Most programs leave these settings empty, so only a value imports the code that checks it.


def _reserve(name: str, value: Any) -> tuple[str, ...]:
    if value == ():
        return ()
    from headrace.policy.reserve import check_reserve

    return check_reserve(name, value)


def _slots(reserve: tuple[str, ...]) -> int:
    from headrace.policy.reserve import parse_reserve

    return sum(parse_reserve(entry).slots for entry in reserve)


def _history_url(name: str, value: Any) -> str:
    if value == "":
        return ""
    from headrace.sink.address import check_history_url

    return check_history_url(name, value)


def _trace_url(name: str, value: Any) -> str:
    if value == "":
        return ""
    from headrace.policy.settings_checks import check_trace_url

    return check_trace_url(name, value)


def _webhook_secret(_: str, value: Any) -> str:
    if value == "":
        return ""
    from headrace.webhooks.declare import read_secrets

    return ",".join(read_secrets(value))


def _webhook_allow(_: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, tuple | list):
        raise ConfigError(f'webhook_allow = {value!r}: a list of networks and host names, e.g. ["10.1.0.0/16"]')
    entries = tuple(cast("tuple[str, ...]", value))
    if entries:
        from headrace.webhooks.declare import Allow

        Allow.of(entries)
    return entries


_MOMENT = timedelta(milliseconds=10)
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "url": check_url,
    "app": check_app,
    "queues": check_queues,
    "concurrency": number(1, 10_000),
    "threads": number(1, 10_000),
    "reserve": _reserve,
    "processes": number(1, 512),
    "lease": time(timedelta(milliseconds=100)),
    "heartbeat": time(_MOMENT),
    "poll": time(_MOMENT),
    "reap": time(_MOMENT),
    "drain": time(timedelta(0)),
    "kill_grace": time(timedelta(0)),
    "max_jobs": number(0, 1_000_000_000),
    "max_memory": read_size,
    "max_jobs_per_child": number(0, 1_000_000_000),
    "max_memory_per_child": read_size,
    "max_payload": number(1024, 64 * 1024 * 1024),
    "max_result": number(1024, 64 * 1024 * 1024),
    "keep_done": time(timedelta(0)),
    "keep_dead": time(timedelta(0)),
    "keep_history": time(timedelta(hours=1)),
    "history_url": _history_url,
    "key_ttl": time(timedelta(seconds=1)),
    "webhook_secret": _webhook_secret,
    "webhook_allow": _webhook_allow,
    "log_level": choice(*LOG_LEVELS),
    "log_format": choice(*LOG_FORMATS),
    "job_log_level": choice(*LOG_LEVELS),
    "trace_url": _trace_url,
    "durability": choice("strict", "relaxed"),
}

_NUMBERS = {"concurrency", "threads", "processes", "max_jobs", "max_jobs_per_child", "max_payload", "max_result"}


# ── the layers ───────────────────────────────────────────────────────────────

Layer = dict[str, tuple[Any, str]]


def _from_flags(flags: Mapping[str, Any]) -> Layer:
    return {_known(name, name): (value, "flag") for name, value in flags.items() if value is not None}


def _from_environment(environ: Mapping[str, str]) -> Layer:
    return {
        _known(name.removeprefix(PREFIX).lower(), name, prefix=PREFIX): (value, name)
        for name, value in environ.items()
        # An empty variable counts as unset, because a shell clears a variable for one command like that.
        # HEADRACE_TEST_… name servers for tests and benchmarks and are not settings.
        if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}TEST_") and value
        if not re.fullmatch(_SERVICE_LINK, name)
    }


def _from_pyproject(start: Path) -> Layer:
    path = find_pyproject(start)
    if path is None:
        return {}
    import tomllib

    try:
        table = _table(path.read_bytes().decode())
        if not hasattr(table, "items"):
            raise ConfigError(f"{path}: [tool.headrace] must be a table of settings")
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return {_known(name, f"[tool.headrace] {name} in {path}"): (value, str(path)) for name, value in table.items()}


@lru_cache(maxsize=8)
def _table(text: str) -> Any:
    """`[tool.headrace]` of a pyproject.toml. Cached, because a process may make many apps and parsing is slow."""
    import tomllib

    return tomllib.loads(text).get("tool", {}).get("headrace", {})


def find_pyproject(start: Path) -> Path | None:
    """The nearest pyproject.toml from `start` upwards."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return path
    return None


def _known(name: str, shown: str, *, prefix: str = "") -> str:
    if name in NAMES:
        return name
    from difflib import get_close_matches  # imported here, because only an error needs it

    close = get_close_matches(name, NAMES, n=1)
    hint = (
        f"did you mean {prefix}{close[0].upper() if prefix else close[0]}?" if close else f"known: {', '.join(NAMES)}"
    )
    raise ConfigError(f"unknown setting {shown}: {hint}")


def _parse(name: str, value: Any, source: str) -> Any:
    """A checked value from the environment's text, TOML or Python. The error names the source."""
    try:
        if isinstance(value, str):
            if name in {"queues", "reserve", "webhook_allow"}:
                value = [part.strip() for part in value.split(",") if part.strip()]
            elif name in _NUMBERS and re.fullmatch(r"[+-]?\d{1,18}", value.strip()):
                value = int(value)
            elif name in {"log_level", "log_format", "job_log_level", "durability"}:
                value = value.strip().lower()
        return _CHECKS[name](name, value)
    except ConfigError as error:
        raise ConfigError(f"{error} (from {source})") from None


# ── for display ──────────────────────────────────────────────────────────────


def _show(name: str, value: Any) -> str:
    match value:
        case timedelta():
            return duration.show(value)
        case tuple():
            return ", ".join(cast("tuple[str, ...]", value)) or ("all" if name == "queues" else "nothing")
        case _ if name == "webhook_secret":
            return "•••" if value else ""
        case int() if name.startswith("max_memory"):
            return show_size(value)
        case _:
            return mask_url(str(value)) if name.endswith("url") else str(value)
