"""The order of a parallel run: each test process begins with its share of the long files.

Test processes take over tests from the end of each other's line. A long test there would keep one process busy when the others have
ended, so the ends of all lines are made of short tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, Protocol, TypeVar

LONG: Final[Mapping[str, int]] = {
    "crash/test_supervised.py": 160,
    "conformance/test_machine.py": 110,
    "worker/test_flow.py": 80,
    "bench/test_bench.py": 75,
    "stores/redis/test_cluster_node_down.py": 75,
    "conformance/test_weights.py": 60,
    "docs/test_first_pages.py": 50,
    "crash/test_limits.py": 45,
    "stores/postgres/test_connections.py": 40,
    "server/test_openapi.py": 40,
    "crash/test_crash_points.py": 35,
    "server/security/test_measured.py": 35,
    "docs/test_docs.py": 35,
    "conformance/test_round_robin.py": 33,
    "integrations/test_django.py": 33,
    "stores/postgres/test_turns.py": 33,
    "bench/test_http.py": 25,
    "testing/test_plugin.py": 25,
    "stores/redis/test_cluster.py": 24,
    "stores/postgres/test_looks.py": 24,
    "stores/postgres/test_tx.py": 23,
    "webhooks/test_crash.py": 22,
    "cli/test_dev.py": 22,
    "races/test_winners.py": 20,
    "cli/test_reload.py": 20,
    "examples/test_flow.py": 15,
    "server/security/test_load.py": 15,
    "integrations/test_flask.py": 14,
    "domain/test_clock_changes.py": 12,
    "docs/test_site.py": 12,
    "typing/test_typing.py": 10,
    "domain/test_codec.py": 10,
}
"""Files by the seconds that one process needs for them. Wrong seconds cost time, and change no result."""


class Item(Protocol):
    """The part of a pytest item that the order depends on."""

    @property
    def path(self) -> PurePath: ...


T = TypeVar("T", bound=Item)


def longest_first(items: Sequence[T], processes: int) -> list[T]:
    """The same tests: as many equal parts as there are processes, and at the beginning of each its share of long files."""
    files: dict[str, list[T]] = {}
    rest: list[T] = []
    for item in items:
        if (name := _long(item.path)) is None:
            rest.append(item)
        else:
            files.setdefault(name, []).append(item)
    heads: list[list[T]] = [[] for _ in range(processes)]
    seconds = [0] * processes
    for name in sorted(files, key=lambda name: -LONG[name]):
        least = seconds.index(min(seconds))
        seconds[least] += LONG[name]
        heads[least] += files[name]
    ordered: list[T] = []
    used = 0
    for head, size in zip(heads, _sizes(len(items), processes), strict=True):
        more = max(0, size - len(head))
        ordered += [*head, *rest[used : used + more]]
        used += more
    return ordered + rest[used:]


def _sizes(count: int, processes: int) -> list[int]:
    """The parts into which the scheduler cuts the line."""
    sizes: list[int] = []
    for number in range(processes):
        sizes.append((count - sum(sizes)) // (processes - number))
    return sizes


def _long(path: PurePath) -> str | None:
    names = ("/".join(path.parts[-parts:]) for parts in (2, 3))
    return next((name for name in names if name in LONG), None)
