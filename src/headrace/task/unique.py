"""Uniqueness: at most one job of a kind at a time, as a task declares it. Each store enforces the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, get_args

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import JobState, UniqueLock
from headrace.model.lane import check_key

OnConflict = Literal["return", "skip", "replace", "debounce"]

WAITING_OR_RUNNING: Final = ("blocked", "scheduled", "ready", "running")


class Unique:
    """While one job holds the lock, another of the same key is not made.

    `key`: a function of the task's arguments; None: all of them. The lock is held while the job is in one of `states`,
    at most for `within` from its enqueue. `on_conflict`: `return` returns the handle of the holder; `skip` does the
    same and leaves it out of the answer of `enqueue_many`; `replace` cancels a waiting holder; `debounce` does that and
    delays the new job by `within`, so that it runs when no further job has come for that time.
    """

    __slots__ = ("key", "on_conflict", "states", "within")

    def __init__(
        self,
        key: Callable[..., str | int] | None = None,
        within: duration.Duration | None = None,
        states: Iterable[str] = WAITING_OR_RUNNING,
        on_conflict: OnConflict = "return",
    ) -> None:
        if key is not None and not callable(key):
            raise ConfigError(f"Unique: key = {key!r}: a function of the task's arguments, or None for all of them")
        if on_conflict not in get_args(OnConflict):
            raise ConfigError(f"Unique: on_conflict = {on_conflict!r}: one of {', '.join(get_args(OnConflict))}")
        self.key = key
        """The function of the task's arguments that gives the key. None: all arguments are the key."""
        self.within = _within(within)
        """The longest time that a job holds the lock. None: as long as its state says."""
        self.states = _states(states)
        """The states in which a job holds the lock."""
        self.on_conflict: OnConflict = on_conflict
        """What an enqueue does while another job holds the lock."""
        if on_conflict == "debounce" and self.within is None:
            raise ConfigError('Unique: on_conflict = "debounce" needs within="5s": how long it must be quiet')

    def __repr__(self) -> str:
        within = "" if self.within is None else f" within {duration.show(self.within)}"
        return f"<Unique{within}, on conflict {self.on_conflict}>"

    @property
    def skips(self) -> bool:
        """Whether a bulk call leaves out jobs whose lock is held."""
        return self.on_conflict == "skip"

    @property
    def delay(self) -> timedelta | None:
        """The delay of every job."""
        return self.within if self.on_conflict == "debounce" else None

    def lock_for(self, args: Sequence[Any], kwargs: Mapping[str, Any], payload: bytes) -> UniqueLock:
        """The lock that a job with these arguments needs. `payload`: the canonical bytes of the arguments."""
        if self.key is None:
            from hashlib import blake2b

            name = blake2b(payload, digest_size=16).hexdigest()
        else:
            key = self.key(*args, **kwargs)
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise ConfigError(f"its key is {key!r}: a text or a whole number")
            name = check_key(str(key))
        # The lock must outlive the delay of a debounced job, or two of them could wait.
        within = None if self.on_conflict == "debounce" else self.within
        return UniqueLock(name, self.states, within, replace=self.on_conflict in {"replace", "debounce"})


def _within(value: duration.Duration | None) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'Unique: within = {value!r} is not a duration: write "10m" or a timedelta')
    length = duration.parse(value, name="Unique: within")
    if not length:
        raise ConfigError(f"Unique: within = {value!r}: must be more than 0; leave it out for no end")
    return length


def _states(given: Iterable[str]) -> frozenset[JobState]:
    names = [given] if isinstance(given, str) else list(given)
    try:
        states = frozenset(JobState(name) for name in names)
    except ValueError:
        raise ConfigError(f"Unique: states = {given!r}: some of {', '.join(JobState)}") from None
    if not states:
        raise ConfigError(f"Unique: states is empty: some of {', '.join(JobState)}, e.g. {WAITING_OR_RUNNING}")
    return states
