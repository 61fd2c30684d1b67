"""A store that lives in the event loop of the portal, for callers in every other loop of this process."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

from headrace.runtime.portal import Portal
from headrace.store.contract import Store


class Remote:
    """A store whose verbs run in the portal's loop, whichever loop calls them.

    A store that exists only in this process needs it, so that sync producers and a worker in the main loop share one.
    """

    def __init__(self, home: Portal, store: Store) -> None:
        self._home = home
        self._store = store

    async def close(self) -> None:
        """Do nothing: other loops still use the store, which ends with the process."""

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def forward(*args: Any, **kwargs: Any) -> Any:
            if asyncio.get_running_loop() is self._home.loop:
                return await verb(*args, **kwargs)
            return await self._home.answer_of(lambda: verb(*args, **kwargs))

        return forward


def remote(home: Portal, store: Store) -> Store:
    """The store, usable from every event loop of this process."""
    return cast("Store", Remote(home, store))
