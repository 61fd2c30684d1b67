"""headrace's schema in a Django database."""

from __future__ import annotations

from headrace import store as stores
from headrace.integrations.django import place
from headrace.integrations.django.backend import HeadraceBackend
from headrace.integrations.django.frame import task_backends
from headrace.runtime.portal import portal


def migrate(database: str) -> None:
    """Update what the backends have in this database: all their tables, or an outbox."""
    if place.in_memory(database):
        return  # A database in memory belongs to a test and has no workers.
    for alias in task_backends.settings:
        backend = task_backends[alias]
        if not isinstance(backend, HeadraceBackend):
            continue
        if backend.lives_in(database):
            portal.run(lambda: _migrate(place.url_of(database)))
        elif backend.options.get("outbox") == database and (outbox := backend.app.duties.outbox) is not None:
            portal.run(outbox.prepare)


async def _migrate(url: str) -> None:
    store = stores.connect(url)
    try:
        await store.migrate()
    finally:
        await store.close()
