"""Secrets that all servers of a store share. The first server makes them."""

from __future__ import annotations

import secrets
from typing import Final

from headrace.store.contract import Store

KIND: Final = "secret"
"""Records of this kind never leave a server."""


async def shared_secret(store: Store, name: str) -> bytes:
    """The secret of this name."""
    while (record := (await store.records(KIND)).get(name)) is None:
        await store.record(KIND, name, secrets.token_bytes(32), None)
    return record.value
