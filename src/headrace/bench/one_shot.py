"""A script that enqueues one job and ends: `python -m headrace.bench.one_shot`, its orders on stdin."""

from __future__ import annotations

import sys
import time

import msgspec

from headrace.bench.load import TEXT, Load
from headrace.bench.roles import Spec


def main() -> None:
    # The orders contain the URL, which may have a password that must not be in the list of processes.
    spec = msgspec.json.decode(sys.stdin.readline(), type=Spec)
    Load(spec.url, spec.queue).mark.enqueue(spec.count, TEXT)
    sys.stdout.write(f"{time.monotonic()}\n")


if __name__ == "__main__":
    main()
