"""Addresses: reads `sqlite:///…` URLs and refuses files that cannot hold a queue."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import ConfigError, Unavailable

_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre"})
_REMOTE_PREFIXES = ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.ceph", "fuse.rclone")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Address:
    """A file, and how durably to write it."""

    path: Path
    """The absolute path. Links in its folder are resolved."""
    sync: Literal["full", "normal"] = "full"

    @classmethod
    def parse(cls, url: str) -> Address:
        parts = urlsplit(url)
        if parts.scheme != "sqlite" or parts.netloc or parts.fragment or len(parts.path) < 2:
            raise ConfigError("a SQLite URL is sqlite:///relative.db or sqlite:////absolute/path.db")
        sync = "full"
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name != "sync":
                raise ConfigError(f"a SQLite URL takes sync=full or sync=normal, not {name[:40]!r}")
            sync = value
        name = unquote(parts.path[1:])
        if sync not in {"full", "normal"}:
            raise ConfigError(f"sync={sync[:20]!r} in a SQLite URL: full (power loss loses nothing) or normal")
        if "\0" in name or name.startswith((":", "file:")):
            raise ConfigError("a SQLite URL names a file; for jobs that live in memory use memory://")
        path = Path(name)
        if not path.name:
            raise ConfigError("a SQLite URL names a file, this one a folder")
        # Links on the way to the file are followed, the file itself must be none (see prepare).
        return cls(path.parent.resolve() / path.name, "normal" if sync == "normal" else "full")

    def prepare(self) -> None:
        """Check the place; make the file, readable by its owner only, if it is new."""
        _check_folder(self.path)
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            self._create()
            return
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be looked at: {error.strerror}") from None
        if stat.S_ISLNK(status.st_mode):
            raise ConfigError(f"{self.path} is a symbolic link: name the file itself")
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{self.path} is a folder: name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self.path} is no regular file")
        if not _may(self.path, os.R_OK | os.W_OK):
            raise ConfigError(f"{self.path} cannot be written by this user: change its owner or mode")

    def _create(self) -> None:
        # Closing a descriptor drops the locks that this process has on the file. O_EXCL keeps this from opening a file
        # that exists. The -wal and -shm files get the same mode.
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be created: {error.strerror}") from None


def _check_folder(path: Path) -> None:
    folder = path.parent
    if not folder.exists():
        raise ConfigError(f"the folder {folder} does not exist: create it first")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    if not _may(folder, os.W_OK | os.X_OK):
        # SQLite makes its -wal file there.
        raise ConfigError(f"the folder {folder} cannot be written by this user, but SQLite needs to")
    kind = filesystem(folder)
    if kind in _REMOTE or kind.startswith(_REMOTE_PREFIXES):
        raise ConfigError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold: use a local disk"
        )


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def filesystem(folder: Path) -> str:
    """The type of the file system that a folder is on. Empty: the system does not tell."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        if folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
