"""The store of a run: a temporary file for a plain name, or the store behind a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import ConfigError
from headrace.model.masked_url import mask_url
from headrace.store import REDIS_SCHEMES, connect, in_one_process


@dataclass(frozen=True, slots=True)
class Stand:
    """A store to measure."""

    engine: str
    fresh: Callable[[], str]
    """The URL of a store for the next group of workloads, an empty one if possible."""
    shared: bool = True
    """Whether several processes can use one store."""
    renews: bool = True
    """`fresh` makes an empty store. False: it is always the same one."""
    folder: Path | None = None
    """The folder of its files. None: unknown."""

    @property
    def in_memory(self) -> bool:
        """Whether its files are in memory, where a durable commit costs nothing."""
        return self.folder is not None and _file_system(self.folder) in {"tmpfs", "ramfs"}


@contextmanager
def _sqlite() -> Generator[Stand]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        numbers = iter(range(1_000_000))
        place = Path(folder)

        def fresh() -> str:
            # The last group has ended, and its file may be large.
            for old in place.glob("bench-*"):
                old.unlink()
            return f"sqlite:///{place / f'bench-{next(numbers)}.db'}"

        yield Stand("sqlite", fresh, folder=place)


@contextmanager
def _memory() -> Generator[Stand]:
    yield Stand("memory", lambda: "memory://", shared=False)


Stands = Mapping[str, Callable[[], AbstractContextManager[Stand]]]

STANDS: Stands = {"sqlite": _sqlite, "memory": _memory}
"""Stores that need no server, by name."""
_ENGINES = {
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    **dict.fromkeys(REDIS_SCHEMES, "redis"),
}


@contextmanager
def open_stand(store: str, stands: Stands = STANDS) -> Generator[Stand]:
    """The stand for `--store`. Raises ConfigError for an unknown name or URL."""
    if "://" not in store:
        if store not in stands:
            raise ConfigError(f"no store {store!r} to measure: use {', '.join(stands)}, or the URL of an empty store")
        with stands[store]() as stand:
            yield stand
        return
    connect(store)  # refuses an unknown scheme before anything is started
    scheme = urlsplit(store).scheme
    folder = Path(unquote(urlsplit(store).path[1:])).absolute().parent if scheme == "sqlite" else None
    yield Stand(
        _ENGINES.get(scheme, scheme), lambda: store, shared=not in_one_process(store), renews=False, folder=folder
    )


async def prepare(url: str) -> None:
    """Update a store's schema, and refuse a store that has jobs."""
    store = connect(url)
    try:
        await store.migrate()
        await store.open()
        for queue in (await store.stats()).queues:
            if not queue.queue.startswith("bench-") and queue.ready + queue.scheduled + queue.running:
                raise ConfigError(
                    f"{mask_url(url)} holds jobs of queue {queue.queue!r}: measure on an empty store, never on a live one"
                )
    finally:
        await store.close()


def _file_system(folder: Path) -> str:
    """The type of the file system of a folder. "": unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    real = folder.resolve()
    holding = [(len(at), kind) for _, at, kind, *_ in mounts if real.is_relative_to(at)]
    return max(holding)[1] if holding else ""


def shown(store: str) -> str:
    """A bare name, or a URL without its password."""
    return mask_url(store) if "://" in store else store
