"""Scopes: what a token of the server may do."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What a token may do."""

    ENQUEUE = "enqueue"
    """Enqueue jobs, and read how they end."""
    WORK = "work"
    """Claim jobs and settle them."""
    READ = "read"
    """Read everything."""
    OPERATE = "operate"
    """Cancel, retry, delete, pause, replay."""
    ADMIN = "admin"
    """Tokens, limits, the audit log."""
