"""`headrace dev --reload`: runs the command in a child process, and starts it again when a Python file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import FrameType

from headrace.cli.output import say
from headrace.cli.target import dotted
from headrace.errors import ConfigError
from headrace.settings import Settings

FLAG = "--reload"
PARENT = "_HEADRACE_RELOADER"
"""The variable that names the process id of the reloader. Its child ends when the reloader ends."""
EVERY = 0.3
"""Seconds between two looks at the files. Looking needs no further package, and also works in containers and on network
file systems, which do not report changes."""
PATIENCE = 5.0
"""Seconds that running jobs get after a change. Then they are handed back, and run again with the new code."""
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}

Stamps = Mapping[str, tuple[int, int]]
"""path → time of the last change, size"""


def folder_of(app: str) -> Path:
    """The folder to watch: the one from which the app is imported, or the app's own package if that is installed."""
    name = dotted(app).partition(":")[0].partition(".")[0]
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Path.cwd()
    places = list(spec.submodule_search_locations or ())
    own = Path(places[0]) if places else Path(spec.origin or here).parent
    root = own.parent if places else own
    return own if "site-packages" in root.parts else root


def stamps(folder: Path) -> Stamps:
    """The Python files below a folder, without hidden folders and virtual environments."""
    return dict(_files(str(folder)))


def _files(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED and not _is_environment(entry.path):
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, (status.st_mtime_ns, status.st_size)
        except OSError:
            continue  # The file went away meanwhile.


def _is_environment(folder: str) -> bool:
    return Path(folder, "pyvenv.cfg").exists()


class Reloader:
    """One child at a time. Ctrl-C and TERM end the child, and then this process with the child's exit code."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None
        self._received: signal.Signals | None = None

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # Under nohup, HUP stays ignored.
                signal.signal(number, self._heard)
        seen = stamps(self._folder)
        while True:
            code = self._run_until_change(seen)
            if self._is_told() or (not code and stamps(self._folder) == seen):
                return code
            if code and stamps(self._folder) == seen:
                say(f"the app ended with exit code {code}: waiting for a change in {self._folder}")
                self._wait_for_change(seen)
                if self._is_told():
                    return code
            now = stamps(self._folder)
            paths = _changed(seen, now)
            _drop_bytecode(paths)
            say(f"{_names(paths)} changed: starting again")
            seen = now

    def _is_told(self) -> bool:
        """A signal came. It may come at any time, also between two looks."""
        return self._received is not None

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = signal.Signals(number)
        self._tell(self._received)

    def _tell(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def _run_until_change(self, seen: Stamps) -> int:
        # The child has a process group of its own, so that Ctrl-C reaches it once: from here.
        child = self._child = subprocess.Popen(
            self._command, env={**os.environ, PARENT: str(os.getpid())}, process_group=0
        )
        if self._received is not None:  # The signal came while the child started.
            self._tell(self._received)
        asked_at: float | None = None
        while True:
            try:
                return child.wait(EVERY)
            except subprocess.TimeoutExpired:
                pass
            if self._received is not None:
                continue
            if asked_at is None and stamps(self._folder) != seen:
                asked_at = time.monotonic()
                self._tell(signal.SIGTERM)
            elif asked_at is not None and time.monotonic() - asked_at > PATIENCE:
                asked_at = float("inf")
                self._tell(signal.SIGTERM)

    def _wait_for_change(self, seen: Stamps) -> None:
        while self._received is None and stamps(self._folder) == seen:
            time.sleep(EVERY)


def _changed(before: Stamps, after: Stamps) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _drop_bytecode(paths: list[str]) -> None:
    """Python takes bytecode for current if the source has the same size and was changed in the same second."""
    for path in paths:
        with suppress(OSError):
            Path(cache_from_source(path)).unlink(missing_ok=True)


def _names(paths: list[str]) -> str:
    first = os.path.relpath(paths[0]) if paths else "a file"
    return first if len(paths) < 2 else f"{first} and {len(paths) - 1:,} more"


def follow_reloader() -> None:
    """In the child of a reloader: end when the reloader has ended."""
    if parent := os.environ.pop(PARENT, ""):
        from headrace.worker.parent_watch import die_with_parent

        die_with_parent(int(parent), signal.SIGTERM)


def reload(app: str | None) -> int:
    """Run this very command without the flag, again after each change. Returns the exit code."""
    named = Settings.load(app=None if app is None else dotted(app)).app
    if not named:
        raise ConfigError("no app is named: give APP as package.module:app, set HEADRACE_APP, or [tool.headrace] app")
    command = [sys.executable, *(word for word in sys.orig_argv[1:] if word != FLAG)]
    return Reloader(command, folder_of(named)).run()
