"""The bridge for sync code: threads, forks, interrupts and the process's end."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.errors import HeadraceError, Unsupported
from headrace.runtime.portal import Portal
from headrace.settings import Settings


@pytest.fixture
def portal():
    portal = Portal()
    yield portal
    portal.close()


def test_one_thread_for_all(portal):
    async def where() -> str:
        return threading.current_thread().name

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(portal.run(where))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["headrace"] * 8


def test_errors_come_back(portal):
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        portal.run(fail)


def test_it_starts_again_after_it_was_closed(portal):
    async def one() -> int:
        return 1

    assert portal.run(one) == 1
    portal.close()
    portal.close()
    assert portal.run(one) == 1


def test_closing_ends_what_lives_in_the_loop(portal):
    ended = threading.Event()

    async def hold() -> None:
        async def keep():
            try:
                yield
            finally:
                ended.set()

        portal.kept = keep()
        await anext(portal.kept)

    portal.run(hold)
    portal.close()
    assert ended.is_set()


def test_a_sync_call_in_its_own_thread_is_refused_instead_of_waiting_for_itself(portal):
    async def inner() -> None: ...

    async def outer() -> None:
        portal.run(inner)

    with pytest.raises(HeadraceError, match="would wait for itself"):
        portal.run(outer)


def test_a_caller_who_gives_up_takes_the_call_back(portal, monkeypatch):
    started, cancelled = threading.Event(), threading.Event()

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    start = portal.start

    def interrupted(make):
        future = start(make)

        def result(timeout=None):
            started.wait()
            raise KeyboardInterrupt

        future.result = result
        return future

    monkeypatch.setattr(portal, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.run(forever)
    assert cancelled.wait(60)


SCRIPT = """
    import asyncio, os, sys
    from headrace import Headrace

    app = Headrace({url!r})

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

"""


def run(url: str, body: str) -> str:
    """A script in a process of its own, with warnings as errors: it must leave nothing behind."""
    code = textwrap.dedent(SCRIPT).format(url=url) + textwrap.dedent(body)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_script_that_just_ends(store_url):
    assert run(store_url, "print(add.enqueue(1, 2).status().state)") == "ready\n"


def test_a_script_with_its_own_loop_that_just_ends(store_url):
    body = """
        async def main():
            handle = await add.aenqueue(1, 2)
            print((await handle.astatus()).state)

        asyncio.run(main())
    """
    assert run(store_url, body) == "ready\n"


def test_the_end_of_a_script_starts_no_thread(store_url, tmp_path):
    """Newer Pythons refuse to; here any Python does."""
    body = """
        import atexit, threading
        from headrace.runtime.portal import portal

        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        atexit.register(setattr, threading.Thread, "start", refuse)  # runs before what was registered earlier
        print(add.enqueue(1, 2).status().state)
        portal.run(app.outbox("sqlite:///OUTBOX").prepare)  # works in threads of the portal's loop
    """
    assert run(store_url, body.replace("OUTBOX", str(tmp_path / "orders.db"))) == "ready\n"


def test_a_forked_child_starts_its_own(tmp_path):
    body = """
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        add.enqueue(1, 2)
        pid = os.fork()
        if pid == 0:
            add.enqueue(3, 4)
            app.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        add.enqueue(5, 6)
        print(app.stats().queues[0].ready)
    """
    assert run(f"sqlite:///{tmp_path}/jobs.db", body) == "3\n"


def test_importing_headrace_imports_no_driver_and_no_framework():
    code = "import sys; from headrace import Headrace; print([m for m in ('asyncpg', 'rich', 'click', 'pydantic', 'sqlite3') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_naming_stores_imports_none_of_them():
    code = "import headrace.store, sys; print([m for m in sys.modules if m.startswith('headrace.store.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"headrace.store.redis", "headrace.store.sqlite", "headrace.store.postgres"} & set(eval(done.stdout))


# ── the caller's transaction ─────────────────────────────────────────────────


def test_a_job_commits_or_rolls_back_with_the_callers_writes(tmp_path: Path):
    file = tmp_path / "jobs.db"
    app = Headrace(settings=Settings(url=f"sqlite:///{file}"))

    @app.task(name="noop")
    def noop(n: int) -> None: ...

    app.stats()
    mine = sqlite3.connect(file, isolation_level=None)
    mine.execute("create table orders (id integer)")
    for ending, expected in (("rollback", 0), ("commit", 3)):
        mine.execute("begin immediate")
        mine.execute("insert into orders values (7)")
        handle = noop.using(tx=mine).enqueue(1)
        handles = app.enqueue_many([noop.job(2), noop.job(3)], tx=mine)
        mine.execute(ending)
        found = [app.get(each) for each in (handle, *handles)]
        assert sum(job is not None for job in found) == expected
        assert mine.execute("select count(*) from orders").fetchone()[0] == expected // 3
    mine.close()
    app.close()


async def test_a_job_commits_with_the_callers_writes_in_async_code(tmp_path: Path):
    file = tmp_path / "jobs.db"
    app = Headrace(settings=Settings(url=f"sqlite:///{file}"))

    @app.task(name="noop")
    async def noop(n: int) -> None: ...

    async with app:
        mine = sqlite3.connect(file, isolation_level=None)
        mine.execute("begin immediate")
        handle = await noop.using(tx=mine).aenqueue(1)
        (other,) = await app.aenqueue_many([noop.job(2)], tx=mine)
        mine.execute("commit")
        mine.close()
        assert await app.aget(handle) is not None
        assert await app.aget(other) is not None


def test_a_store_without_transactions_says_so():
    app = Headrace(settings=Settings(url="memory://"))

    @app.task(name="noop")
    def noop() -> None: ...

    with pytest.raises(Unsupported, match="cannot join your transaction"):
        noop.using(tx=object()).enqueue()
    with pytest.raises(Unsupported, match="cannot join your transaction"):
        app.enqueue_many([noop.job()], tx=object())
