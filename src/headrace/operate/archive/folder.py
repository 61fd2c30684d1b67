"""The folder of an archive: which of its files are whole, and whose jobs may still be in the store.

A file is written under a hidden name. When it is whole and on disk, a mark says that its jobs are about to be deleted. Then the
file gets its name, and after the deletion the mark goes. So after a crash, a file without a mark is finished, and a file
with a mark has all of its rows while some of its jobs may be left.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

_DRAFT: Final = ".draft.parquet"
_LOCK: Final = ".lock"
_MARK: Final = ".deleting"


class ArchiveFolder:
    """One folder, used by one process at a time. Hidden names are those that readers of a folder of Parquet files skip."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.draft = path / _DRAFT
        """The file that is being written."""

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes out. A lock ends with its process, also with one that is killed."""
        self._path.mkdir(parents=True, exist_ok=True)
        with (self._path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"another process archives into {self._path}: wait until it has ended") from None
            self.draft.unlink(missing_ok=True)
            yield

    def unfinished(self) -> list[Path]:
        """Files whose jobs may still be in the store. Marks without a file are removed, because nothing was deleted."""
        files: list[Path] = []
        for mark in sorted(self._path.glob(f".*{_MARK}")):
            file = self._path / mark.name[1 : -len(_MARK)]
            if file.exists():
                files.append(file)
            else:
                mark.unlink()
        return files

    def publish(self, name: str) -> Path:
        """Give the draft its name. It never replaces another file."""
        file = self._path / f"{name}.parquet"
        number = 1
        while file.exists():
            number += 1
            file = self._path / f"{name}-{number}.parquet"
        _to_disk(self.draft)
        mark = self._mark(file)
        mark.touch()
        _to_disk(mark)
        _to_disk(self._path)
        self.draft.rename(file)
        _to_disk(self._path)
        return file

    def finish(self, file: Path) -> None:
        """The jobs of the file are deleted."""
        self._mark(file).unlink()
        _to_disk(self._path)

    def _mark(self, file: Path) -> Path:
        return self._path / f".{file.name}{_MARK}"


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
