"""Fixtures shared by every test: stores of every kind, a clock that can be turned, real servers started when first needed."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from databases import Databases
from headrace.store import connect
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock
from http_stand import HttpStand, hand_over_clocks, http_stand
from longest_first import longest_first
from memory_folder import use_memory
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from signals import hand_down_defaults

STORES = ("memory", "sqlite", "postgres", "redis", "valkey", "http")
TEMPLATE = "template_headrace"

hand_down_defaults()
use_memory()

if find_spec("sniffio") is None:
    # httpx2 looks for this module several times per request; Python remembers modules that it has found, no others.
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # documented: the import then fails at once

# A commit's run is the same every time; HEADRACE_TEST_PROFILE=deep looks further and elsewhere each time.
settings.register_profile(
    "commit",
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Shrinking on a real server takes minutes; the deep profile does it.
    phases=[phase for phase in Phase if phase is not Phase.shrink],
    report_multiple_bugs=False,
)
settings.register_profile(
    "deep",
    parent=settings.get_profile("commit"),
    max_examples=2000,
    stateful_step_count=80,
    derandomize=False,
    phases=list(Phase),
)
settings.load_profile(os.environ.get("HEADRACE_TEST_PROFILE", "commit"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The modules and items of ten thousand tests stay until the end, so the garbage collector need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = longest_first(items, processes)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# ── databases ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real server, one per test process."""
    with PostgresServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real server, one per test process."""
    with RedisServer.start("redis") as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """A real server, one per test process."""
    with RedisServer.start("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpStand]:
    """A headrace server in front of a memory store, one per test process."""
    with http_stand() as stand:
        yield stand


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A migrated, empty database to copy from."""
    return migrated(postgres_server.create_database(TEMPLATE))


@pytest.fixture(scope="session")
def databases(postgres_server: PostgresServer, postgres_template: str) -> Databases:
    """Migrated, empty databases, one for each test that asks."""
    return Databases(postgres_server, postgres_template)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty file to copy from, which is much quicker than to migrate again."""
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    migrated(f"sqlite:///{path}")
    assert [each.name for each in path.parent.iterdir()] == [path.name], "a closed store leaves one file"
    return path


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    """Folders whose tests need a store that several store objects can share override this fixture."""
    return str(request.param)


@pytest.fixture
def store_url(store_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated, empty place for jobs, also for tests that start processes."""
    if store_name == "memory":
        yield "memory://"
    elif store_name == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        shutil.copy(template, tmp_path / "jobs.db")
        yield f"sqlite:///{tmp_path}/jobs.db"
    elif store_name == "http":
        stand: HttpStand = request.getfixturevalue("http_server")
        hand_over_clocks(stand, request.getfixturevalue("monkeypatch"))
        yield stand.fresh()
        stand.clear()
    elif store_name in {"redis", "valkey"}:
        redis: RedisServer = request.getfixturevalue(f"{store_name}_server")
        redis.command("FLUSHALL")
        yield redis.url()
    else:
        databases: Databases = request.getfixturevalue("databases")
        url = databases.take()
        yield url
        databases.give_back(url)


def migrated(url: str) -> str:
    """The same URL, once its store has the present schema."""
    with asyncio.Runner() as runner:
        runner.run(_migrate(url))
    return url


async def _migrate(url: str) -> None:
    store = connect(url)
    await store.migrate()
    await store.close()


# ── stores ───────────────────────────────────────────────────────────────────


@pytest.fixture
async def store(store_url: str, clock: FakeClock) -> AsyncIterator[Store]:
    """An open, empty store that lives by `clock`."""
    async with nothing_left_behind(), opened(connect(store_url, clock=clock)) as store:
        yield store


@pytest.fixture
async def real_store(store_url: str) -> AsyncIterator[Store]:
    """An open, empty store that lives by its own clock."""
    async with nothing_left_behind(), opened(connect(store_url)) as store:
        yield store


@asynccontextmanager
async def opened(store: Store) -> AsyncGenerator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def nothing_left_behind() -> AsyncGenerator[None]:
    """Code that runs inside has ended its tasks and threads when it returns."""
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    yield
    # The plugin that runs async tests has tasks of its own.
    left = [
        t for t in asyncio.all_tasks() - tasks if not getattr(t.get_coro(), "__qualname__", "").startswith("TestRunner")
    ]
    assert not left, f"still running: {left}"
    # The event loop keeps the threads of its own executor. Those of a driver are told to end, and end a moment later, as does a
    # thread that has resolved a name: it answers before it ends.
    alive = [t for t in set(threading.enumerate()) - threads if t.is_alive() and not t.name.startswith("asyncio_")]
    later = [t for t in alive if t.name == "headrace-names" or not t.name.startswith("headrace")]
    for thread in later:
        await asyncio.to_thread(thread.join, 30)
    assert not [t for t in alive if t.is_alive() or t not in later], f"still alive: {alive}"
