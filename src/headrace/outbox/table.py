"""The outbox's table, in the SQL of each database."""

from __future__ import annotations

from typing import Final

TABLE: Final = "headrace_outbox"
RELAY: Final = "headrace_outbox_relay"

# A delay counts from the time of writing, not from the beginning of the transaction.
POSTGRES: Final = f"""
create table if not exists {TABLE} (
    batch varchar(32) primary key,
    jobs bytea not null,
    written_at timestamptz not null default clock_timestamp(),
    refused text
)"""
SQLITE: Final = f"""
create table if not exists {TABLE} (
    batch text primary key,
    jobs blob not null,
    written_at real not null default (julianday('now')),
    refused text
) without rowid"""
"""The table, for your own migrations; `Outbox.prepare` makes it, too."""

SQLITE_RELAY: Final = f"""
create table if not exists {RELAY} (
    one integer primary key check (one = 1),
    relay text not null,
    until real not null
)"""
"""The relay that runs now, and until when at most. The relay creates the table if it is missing."""
