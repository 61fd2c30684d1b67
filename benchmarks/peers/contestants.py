"""Which programs produce and work for each queue, and on which stores."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.install import NODE_PEERS, Installed
from benchmarks.peers.places import Kind

ROOT: Final = Path(__file__).parents[2]
"""Where all contestants run: the members are modules below it, for each interpreter."""
_MEMBERS: Final = "benchmarks.peers.members"
PEERS: Final[dict[Kind, tuple[str, ...]]] = {
    "redis": ("huey", "saq", "bullmq"),
    "postgres": ("pgqueuer", "graphile"),
    "sqlite": ("huey",),
}

Words = tuple[str | Path, ...]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A queue on one store."""

    name: str
    how: str
    """Of its producer: `sync`, or `async` where it has no other or is measured by it."""
    produce: Words
    work: Words | None
    """None: it only writes."""
    once: Words = ()
    """A script that enqueues one job and ends."""
    import_it: Words | None = None
    """A command that imports the package and ends."""
    help_it: Words | None = None
    """The command of the package with `--help`."""
    fails: bool = True
    """Whether a job that failed can be retried at once."""
    beside: str | None = None
    """The contestant that differs from this one only in its functions, which are coroutines."""


def headrace(label: str, python: Path) -> list[Contestant]:
    """As async code uses it, and as sync code does. `python`: an interpreter that has headrace."""
    # The interpreter knows the package; its scripts may belong to another checkout.
    command = (python, "-c", "from headrace.cli import main; main()")
    work = (*command, "worker", f"{_MEMBERS}.of_headrace:app", "--log-level", "warning")
    produce = (python, "-m", f"{_MEMBERS}.of_headrace")
    bare = (python, "-c", "from headrace import Headrace")
    return [
        Contestant(label, "async", (*produce, "async"), work, (*produce, "async", "once"), bare, (*command, "--help")),
        Contestant(f"{label} sync", "sync", (*produce, "sync"), work, (*produce, "sync", "once"), beside=label),
    ]


def raw(done: Installed) -> Contestant:
    """The floor of a single enqueue."""
    return Contestant("raw write", "sync", (done.bin / "python", "-m", f"{_MEMBERS}.raw"), None)


def peer(name: str, done: Installed) -> Contestant:
    """A peer that is installed."""
    if name in NODE_PEERS:
        node = shutil.which("node") or "node"
        program = ROOT / "benchmarks" / "peers" / "members" / f"of_{name}.mjs"
        script = (node, program)
        return Contestant(
            name, "async", (*script, "produce"), (*script, "work"), (*script, "once"), fails=name != "graphile"
        )
    python, module = done.bin / "python", f"{_MEMBERS}.of_{name}"
    work: dict[str, Words] = {
        "huey": (done.bin / "huey_consumer", f"{module}.huey", "-w", "1", "-k", "thread", "-n", "-q"),
        "saq": (done.bin / "saq", f"{module}.settings"),
        "pgqueuer": (python, "-m", module, "work"),
    }
    how = "async" if name == "saq" else "sync"
    names = {"huey": "RedisHuey", "saq": "Queue", "pgqueuer": "PgQueuer"}
    bare = (python, "-c", f"from {name} import {names[name]}")
    commands = {"huey": "huey_consumer", "saq": "saq", "pgqueuer": "pgq"}
    member = (python, "-m", module)
    return Contestant(
        name,
        how,
        (*member, "produce"),
        work[name],
        (*member, "once"),
        bare,
        (done.bin / commands[name], "--help"),
    )
