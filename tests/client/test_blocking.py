"""Sync twins: one call makes the verb for sync code from the verb for async code."""

from __future__ import annotations

import inspect
import threading
import typing

import pytest

from headrace import Handle, Headrace
from headrace.errors import HeadraceError
from headrace.operate.app_jobs import AppJobs
from headrace.operate.app_pauses import AppPauses
from headrace.operate.dead.app import AppDeadLetters
from headrace.operate.limits import AppLimits
from headrace.operate.schedules import AppSchedules
from headrace.runtime.blocking import blocking

FACES = [Headrace, AppJobs, AppPauses, AppDeadLetters, AppLimits, AppSchedules, Handle]


class Greeter:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    async def agreet(self, *names: str, mark: str = "!") -> tuple[str, str]:
        """Say hello."""
        if not names:
            raise ValueError("no names")
        return f"{self.greeting} {' and '.join(names)}{mark}", threading.current_thread().name

    greet = blocking(agreet)

    async def anest(self) -> object:
        return self.greet("x")

    nest = blocking(anest)


class Polite(Greeter):
    async def agreet(self, *names: str, mark: str = ".") -> tuple[str, str]:
        return f"Dear {' and '.join(names)}{mark}", ""


def test_a_twin_runs_its_verb_in_the_thread_of_the_portal():
    assert Greeter("hello").greet("ann", "bob", mark="?") == ("hello ann and bob?", "headrace")


def test_a_twin_raises_what_its_verb_raises():
    with pytest.raises(ValueError, match="no names"):
        Greeter("hello").greet()


def test_a_twin_called_by_another_one_is_refused_instead_of_waiting_for_itself():
    with pytest.raises(HeadraceError, match="use its async form"):
        Greeter("hello").nest()


def test_a_subclass_that_replaces_the_verb_replaces_its_twin():
    assert Polite("hello").greet("ann") == ("Dear ann.", "")


def test_a_twin_shows_its_own_name_and_the_signature_and_words_of_its_verb():
    twin = Greeter("hello").greet
    assert twin.__name__ == "greet"
    assert twin.__qualname__ == "Greeter.greet"
    assert twin.__module__ == __name__
    assert twin.__doc__ == "Say hello."
    assert str(inspect.signature(twin)) == "(*names: 'str', mark: 'str' = '!') -> 'tuple[str, str]'"
    assert typing.get_type_hints(twin)["return"] == tuple[str, str]


def test_no_framework_takes_a_twin_for_a_coroutine_function():
    twin = Greeter("hello").greet
    assert not inspect.iscoroutinefunction(twin)
    # FastAPI looks through wrappers.
    assert not inspect.iscoroutinefunction(inspect.unwrap(twin))


def test_a_name_without_a_twin_is_refused():
    async def greet(_: object) -> None: ...

    with pytest.raises(TypeError, match="greet: the name of an async verb begins with a"):
        blocking(greet)


@pytest.mark.parametrize("face", FACES)
def test_every_async_verb_has_a_sync_one_with_the_same_signature(face: type):
    pairs = 0
    for name, verb in inspect.getmembers(face, inspect.iscoroutinefunction):
        if name.startswith("_") or name == "astop":
            continue
        twin = getattr(face, name.removeprefix("a"))
        assert not inspect.iscoroutinefunction(twin)
        assert twin.__name__ == name.removeprefix("a")
        assert twin.__doc__
        assert inspect.signature(twin) == inspect.signature(verb)
        pairs += 1
    assert pairs
