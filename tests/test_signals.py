"""The suite passes also where `nohup` or a CI runner has started it with signals ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from signals import SENT_TO_PROCESSES

CHILD = f"import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in {[int(n) for n in SENT_TO_PROCESSES]}])"

RUN = f"""
import os, signal, subprocess, sys
for number in {[int(n) for n in SENT_TO_PROCESSES]}:
    signal.signal(number, signal.SIG_IGN)
if sys.argv[1] == "suite":
    import conftest
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
for number in {[int(n) for n in SENT_TO_PROCESSES]}:
    os.kill(os.getpid(), number)
"""


def started(how: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(
        [sys.executable, "-c", RUN, how], env=env, capture_output=True, text=True, check=True, timeout=300
    )


def test_processes_of_the_suite_start_with_default_signal_handling():
    # The run sends every signal to itself at its end: that it ends well shows that it still ignores them.
    assert started("suite").stdout == f"{[False] * len(SENT_TO_PROCESSES)}\n"


def test_without_the_suite_they_would_inherit_ignored_signals():
    assert started("plain").stdout == f"{[True] * len(SENT_TO_PROCESSES)}\n"
