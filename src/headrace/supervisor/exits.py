"""What the exit code of a child process means."""

from __future__ import annotations

import signal

EXIT_CONFIG = 78
"""Starting again would not help."""
EXIT_DAMAGED = 74
"""The store's file is missing or damaged. A new process would create an empty file, so none is started."""
EXIT_DISMISSED = 77
"""An operator ordered this worker to drain and end, so no process replaces it."""
EXIT_HOOK = 75
"""A hook for the start failed, perhaps because the service that it needs is away for a moment."""


def cause_of(code: int) -> str:
    """An exit code in words: `killed by SIGSEGV`, `exited with code 3`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "killed by SIGKILL (out of memory, or by hand)"
    return f"killed by {name}"
