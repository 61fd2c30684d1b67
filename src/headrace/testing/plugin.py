"""The pytest plugin: fixtures for the kit. It imports nothing of headrace until a test asks for a fixture."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.testing import FakeClock, Ran, StandIn
    from headrace.testing.stand_in import AppUnderTest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("headrace_app", "the app that the fixture headrace_app gives, e.g. shop.jobs:app", default="")


@pytest.fixture
def headrace_app(request: pytest.FixtureRequest) -> Iterator[AppUnderTest]:
    """The app of the ini option `headrace_app`, in a fresh memory store. Override this fixture to give another app."""
    from headrace.testing import use_memory

    app = _load(str(request.config.getini("headrace_app")))
    with use_memory(app):
        yield app


@pytest.fixture
def headrace_stand(headrace_app: AppUnderTest) -> Iterator[StandIn]:
    """The memory store and the clock of `headrace_app`, also where a test suite overrides that fixture."""
    from headrace.testing.stand_in import find_stand, use_memory

    present = find_stand(headrace_app)
    if present is not None:
        yield present
        return
    with use_memory(headrace_app) as stand:
        yield stand


@pytest.fixture
def headrace_clock(headrace_stand: StandIn) -> FakeClock:
    """The clock of `headrace_app`: `headrace_clock.move("2h")`."""
    return headrace_stand.clock


@pytest.fixture
def headrace_inline(headrace_stand: StandIn) -> Iterator[None]:
    """Each job of `headrace_app` runs when it is enqueued."""
    from headrace.testing import inline

    with inline(headrace_stand.app):
        yield


@pytest.fixture
def headrace_drain(headrace_stand: StandIn) -> Callable[..., list[Ran]]:
    """`drain` of `headrace_app`: `headrace_drain(advance=True)`."""
    from functools import partial

    from headrace.testing import drain

    return partial(drain, headrace_stand.app)


@pytest.fixture
def headrace_adrain(headrace_stand: StandIn) -> Callable[..., Awaitable[list[Ran]]]:
    """The same for async tests, to be awaited."""
    from functools import partial

    from headrace.testing import adrain

    return partial(adrain, headrace_stand.app)


def _load(name: str) -> AppUnderTest:
    from importlib import import_module

    if not name:
        raise pytest.UsageError(
            'say which app the tests use: headrace_app = "package.module:app" in the options of pytest, or a fixture '
            "headrace_app of your own"
        )
    module, _, attribute = name.partition(":")
    value: Any = getattr(import_module(module), attribute or "app", None)
    if not hasattr(value, "standing_in"):
        raise pytest.UsageError(f"headrace_app = {name!r}: there is no Headrace by that name")
    app: AppUnderTest = value
    return app
