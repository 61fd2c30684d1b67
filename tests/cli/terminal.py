"""A command on a terminal of a given size, and what it prints there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


def open_terminal(columns: int = 80, lines: int = 24) -> tuple[int, int]:
    """Both ends of a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return ours, theirs


def read_all(ours: int) -> str:
    """What is printed until the last process has closed the terminal."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux answers EIO when the other end is closed.
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode(errors="replace")


def on_terminal(folder: Path, url: str, *args: str, columns: int = 80, lines: int = 24) -> list[str]:
    """The lines that a command prints on a terminal, without colours."""
    ours, theirs = open_terminal(columns, lines)
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *args],
        cwd=folder,
        env={**env, "HEADRACE_URL": url, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        printed = read_all(ours)
        os.close(ours)
        process.wait(timeout=60)
    text = _CONTROL.sub("", printed).replace("\r\n", "\n")
    # A progress bar goes back to the beginning of its line.
    return [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
