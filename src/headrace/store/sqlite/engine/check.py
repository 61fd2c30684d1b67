"""CHECK: the findings that an operator needs."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

from headrace.model.records import Finding
from headrace.store.sqlite.engine import migrate
from headrace.store.sqlite.engine.address import Address, filesystem
from headrace.store.sqlite.engine.files import LONG_LOG
from headrace.store.sqlite.engine.transaction import Tx

_SAFE_VERSION = (3, 51, 3)
_CHECKED_AT_MOST = 1 << 30
"""Bytes. To read a larger file whole would take too long."""


def check(tx: Tx, address: Address, *, is_new: bool) -> list[Finding]:
    """`is_new`: the file had no tables of headrace when this store opened it."""
    return [
        _version(),
        _schema(tx, is_new=is_new),
        _durability(address),
        _mode(address),
        _log(address),
        _integrity(tx, address),
    ]


def _version() -> Finding:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < _SAFE_VERSION:
        return Finding(
            "warning",
            "version",
            f"SQLite {version} can, very rarely, damage a file when its log is checkpointed and reset at the same instant: headrace's "
            "writers take turns to avoid it; use SQLite 3.51.3 or newer if other programs write this file, too",
        )
    return Finding("ok", "version", f"SQLite {version}")


def _schema(tx: Tx, *, is_new: bool) -> Finding:
    if is_new:
        return Finding(
            "warning",
            "schema",
            f"version {migrate.version(tx.cur)}, made just now: the file had no headrace tables; if it should hold jobs, it "
            "is not the file that workers have used before",
        )
    return Finding("ok", "schema", f"version {migrate.version(tx.cur)}")


def _durability(address: Address) -> Finding:
    if (kind := filesystem(address.path.parent)) in {"tmpfs", "ramfs"}:
        return Finding(
            "warning", "durability", f"{address.path} is on {kind}, in memory: a restart of the machine loses all jobs"
        )
    if address.sync == "normal":
        return Finding(
            "warning",
            "durability",
            "sync=normal: a power loss undoes the last moments' writes (a crash of a process undoes nothing); "
            "leave it out of the URL to make every commit last",
        )
    return Finding("ok", "durability", "every commit is synced to the disk")


def _mode(address: Address) -> Finding:
    mode = stat.S_IMODE(address.path.stat().st_mode)
    if mode & 0o077:
        return Finding(
            "warning", "file mode", f"{address.path} has mode {mode:04o}: others may read the jobs; chmod 600 it"
        )
    return Finding("ok", "file mode", f"{mode:04o}")


def _log(address: Address) -> Finding:
    try:
        size = Path(f"{address.path}-wal").stat().st_size
    except FileNotFoundError:
        size = 0
    if size > LONG_LOG:
        return Finding(
            "warning", "log", f"the write-ahead log has {size >> 20} MiB: a reader holds a transaction open; end it"
        )
    return Finding("ok", "log", f"{size >> 20} MiB")


def _integrity(tx: Tx, address: Address) -> Finding:
    size = address.path.stat().st_size
    if size > _CHECKED_AT_MOST:
        return Finding(
            "ok", "integrity", f"not checked, the file has {size >> 20} MiB: run `pragma quick_check` by hand"
        )
    (answer,) = tx.cur.execute("pragma quick_check(1)").fetchone()
    if answer != "ok":
        return Finding("error", "integrity", f"the file is damaged ({answer}): stop everything and restore a backup")
    return Finding("ok", "integrity", "sound")
