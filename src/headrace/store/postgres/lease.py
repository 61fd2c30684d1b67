"""What a store object remembers of the leases that it claimed."""

from __future__ import annotations

from typing import Final

from headrace.model.lease import Token

_MOST: Final = 10_000
"""Leases that are remembered. One that is forgotten is settled position by position."""


class LeaseMemory:
    """The sizes of leases, and the queues of those that hold units of a limit."""

    def __init__(self) -> None:
        self._sizes: dict[Token, int] = {}
        self._limited: dict[Token, set[str]] = {}

    def remember(self, token: Token, size: int, limited: set[str] | None = None) -> None:
        """A lease has so many jobs. `limited`: the queues in which jobs most likely wait for the units that it holds."""
        self._sizes[token] = size
        if len(self._sizes) > _MOST:
            del self._sizes[next(iter(self._sizes))]
        if limited is not None:
            self._limited[token] = limited
            if len(self._limited) > _MOST:
                del self._limited[next(iter(self._limited))]

    def size(self, token: Token) -> int | None:
        return self._sizes.get(token)

    def limited(self, token: Token) -> set[str] | None:
        return self._limited.get(token)

    def forget_size(self, token: Token) -> None:
        """The lease is lost, or not whole any more."""
        self._sizes.pop(token, None)

    def end(self, token: Token) -> None:
        self._sizes.pop(token, None)
        self._limited.pop(token, None)

    def detach(self, token: Token, fresh: Token) -> None:
        """One job of a lease has a lease of its own now."""
        self.forget_size(token)
        self.remember(fresh, 1, self._limited.get(token))
