"""The handles of a bulk call. They are made on first access, because most callers never use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

from headrace.client.bulk import BulkLoad, Placed
from headrace.task.codec import Signature
from headrace.task.handle import Handle, Watch

R = TypeVar("R")


class _Part(NamedTuple):
    """The answer of one call of the store."""

    places: Sequence[int]
    codecs: Signature | list[Signature]
    """One for all of them, or one for each."""
    placed: Placed
    left_out: frozenset[int]
    """Places of jobs that were not made because of a key or lock, and that the caller does not want in the answer."""


class Handles(Sequence[Handle[R]], Generic[R]):
    """A sequence of handles in the order of the caller's jobs, whatever the order in the store.

    Until a handle is read, a job costs nothing here, or two numbers if tenants were mixed. Ten million handles would
    take a gigabyte.
    """

    def __init__(self, home: Watch) -> None:
        self.stored = 0
        """Jobs that the store has accepted."""
        self._home = home
        self._parts: list[_Part] = []
        self._left_out = 0
        self._handles: list[Handle[R]] | None = None

    def add(self, load: BulkLoad[R], placed: Placed) -> None:
        """Add the answer of one call of the store."""
        calls = load.calls
        codec = calls[0].codec
        codecs = codec if all(call.codec is codec for call in calls) else [call.codec for call in calls]
        left_out = frozenset(place for place in placed.existing if calls[place].skips)
        self._parts.append(_Part(load.places, codecs, placed, left_out))
        self.stored += len(calls)
        self._left_out += len(left_out)
        self._handles = None

    def __len__(self) -> int:
        return self.stored - self._left_out

    def __iter__(self) -> Iterator[Handle[R]]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Handle[R]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Handle[R]]: ...

    def __getitem__(self, index: int | slice) -> Handle[R] | list[Handle[R]]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        """As a list of the same handles."""
        if isinstance(other, Handles):
            return self._all() == other[:]
        return self._all() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"<handles of {len(self):,} jobs>"

    def _all(self) -> list[Handle[R]]:
        if self._handles is None:
            by_place: dict[int, Handle[R]] = {}
            for part in self._parts:
                by_place.update(zip(part.places, self._of(part), strict=True))
            left_out = {part.places[at] for part in self._parts for at in part.left_out}
            self._handles = [by_place[place] for place in range(self.stored) if place not in left_out]
        return self._handles

    def _of(self, part: _Part) -> Iterator[Handle[Any]]:
        places, codecs, (batch, existing, ords), _ = part
        for at in range(len(places)):
            codec = codecs if isinstance(codecs, Signature) else codecs[at]
            if at in existing:
                yield Handle(self._home, codec, existing[at], created=False)
            else:
                yield Handle(self._home, codec, batch, at if ords is None else ords[at])
