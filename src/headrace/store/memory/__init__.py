"""The memory store: the contract in its plainest form, the specification that every other store is compared with."""

from headrace.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
