"""The part of an app through which its verbs reach its store."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headrace.runtime.portal import portal

if TYPE_CHECKING:
    from headrace.client.per_loop import Clients
    from headrace.policy.queue import QueueOptions
    from headrace.store.contract import Store


class AppClients:
    """The base of all parts of an app that call its store."""

    queues: dict[str, QueueOptions]

    if TYPE_CHECKING:

        def connect(self) -> Store: ...

    @cached_property
    def clients(self) -> Clients:
        """The app's clients, one for each event loop."""
        # They need asyncio, and a program that only declares tasks does without it.
        from headrace.client.per_loop import Clients

        # Of two threads whose first calls meet, both get the same object.
        clients: Clients = self.__dict__.setdefault("clients", Clients(self.connect, self.queues, portal=portal))
        return clients
