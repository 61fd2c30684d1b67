"""The peers, installed by name into a folder of their own: never into the environment of headrace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_PEERS: Final = {
    "huey": ("huey", "redis", "hiredis"),
    "saq": ("saq[hiredis]",),
    "pgqueuer": ("pgqueuer", "asyncpg", "psycopg[binary]"),
    "raw": ("redis", "hiredis", "psycopg[binary]"),
}
NODE_PEERS: Final = {"bullmq": ("bullmq", "ioredis"), "graphile": ("graphile-worker",)}
_LAST_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the peers are, and which of them could not be had."""

    folder: Path
    versions: dict[str, str]
    """Of each peer that is there."""
    missing: dict[str, str]
    """Peer to the last words of its installer."""

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    @property
    def modules(self) -> Path:
        return self.folder / "node"


def install(folder: Path, peers: set[str]) -> Installed:
    """Install these peers, each by itself, so that one that cannot be had does not stop the others."""
    done = Installed(folder, {}, {})
    python = done.bin / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    done.modules.mkdir(exist_ok=True)
    for name in sorted(peers):
        if name in PYTHON_PEERS:
            words: list[str | Path] = [
                python,
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                *PYTHON_PEERS[name],
            ]
        elif (npm := shutil.which("npm")) is None:
            done.missing[name] = "npm is not installed"
            continue
        else:
            words = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", done.modules, *NODE_PEERS[name]]
        outcome = subprocess.run(words, capture_output=True, text=True, check=False)
        if outcome.returncode:
            done.missing[name] = (outcome.stderr or outcome.stdout).strip()[-_LAST_WORDS:]
        else:
            done.versions[name] = _version(done, name)
    return done


def _version(done: Installed, name: str) -> str:
    if name in NODE_PEERS:
        package = NODE_PEERS[name][0]
        manifest = json.loads((done.modules / "node_modules" / package / "package.json").read_text())
        return f"{package} {manifest['version']}"
    package = PYTHON_PEERS[name][0].partition("[")[0]
    words: list[str | Path] = [
        done.bin / "python",
        "-c",
        f"from importlib.metadata import version; print(version({package!r}))",
    ]
    return f"{package} {subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()}"
