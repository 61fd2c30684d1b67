"""The floor of a single enqueue: one durable write of one value by a plain client, without a queue."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.peers.members.producer import serve

_LOG = 8 * 1024 * 1024
"""Bytes of a log in which all writes of a run find room."""


def _write(url: str) -> Callable[[str], object]:
    if url.startswith("redis:"):
        redis: Any = import_module("redis")
        client = redis.Redis.from_url(url)
        return lambda text: client.lpush("raw", text)
    if url.startswith("postgresql:"):
        psycopg: Any = import_module("psycopg")
        connection = psycopg.connect(url, autocommit=True)
        connection.execute("create table if not exists raw (id bigserial primary key, payload text)")
        return lambda text: connection.execute("insert into raw (payload) values (%s)", (text,), prepare=True)
    file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = full")
    file.execute("create table if not exists raw (id integer primary key, payload text)")
    # The log of a queue soon begins again at its start. A log that still grows makes each commit about 1.6 times as long,
    # because the file system also writes the new size of the file.
    file.execute("insert into raw (payload) values (zeroblob(?))", (_LOG,))
    file.execute("pragma wal_checkpoint(restart)")
    return lambda text: file.execute("insert into raw (payload) values (?)", (text,))


if __name__ == "__main__":
    serve(_write(os.environ["PEERS_URL"]), len)  # no order asks it for many
