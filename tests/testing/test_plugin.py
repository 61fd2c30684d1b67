"""The kit inside real test runs: pytest alone, with pytest-asyncio and anyio, unittest; each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

SHOP = """
from headrace import Headrace, Retry, current_job

app = Headrace("postgresql://nowhere.invalid/none")
paid = []

@app.task(name="charge", queue="billing", retry=Retry(max_attempts=2, base="10s"))
def charge(order: int) -> int:
    if order < 0 and current_job().attempt == 1:
        raise ValueError(order)
    paid.append(order)
    return order

@app.task(name="remind")
async def remind(order: int) -> str:
    await charge.aenqueue(order)
    return f"remember {order}"
"""


def run(folder: Path, *command: str, **files: str) -> str:
    for name, text in {"shop": SHOP, **files}.items():
        (folder / f"{name}.py").write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_pytest(folder: Path, *options: str, ini: str = "", **files: str) -> str:
    (folder / "pytest.ini").write_text(f"[pytest]\nheadrace_app = shop:app\nfilterwarnings = error\n{ini}")
    return run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, **files)


def test_plain_tests(tmp_path: Path) -> None:
    shown = run_pytest(
        tmp_path,
        "-p",
        "no:asyncio",
        test_shop="""
        import pytest
        from headrace.testing import assert_enqueued, assert_not_enqueued, enqueued, faults
        from shop import charge, paid, remind

        def test_enqueue(headrace_app):
            charge.enqueue(1)
            assert_enqueued(charge, 1, queue="billing", count=1)

        def test_each_test_has_a_store_of_its_own(headrace_app):
            assert enqueued(headrace_app) == []

        def test_drain_and_clock(headrace_drain, headrace_clock):
            charge.enqueue(-1)
            assert [ran.outcome for ran in headrace_drain()] == ["failed"]
            assert headrace_drain() == []
            headrace_clock.move("1h")
            assert [ran.outcome for ran in headrace_drain()] == ["succeeded"]
            assert len(headrace_drain(fault=faults.run_twice())) == 0

        def test_inline(headrace_inline):
            assert remind.enqueue(7).result() == "remember 7"
            assert paid[-1] == 7

        @pytest.mark.parametrize("number", range(3))
        def test_without_the_kit(number):
            assert number < 3
        """,
    )
    assert "7 passed" in shown


def test_an_overridden_fixture(tmp_path: Path) -> None:
    shown = run_pytest(
        tmp_path,
        "-p",
        "no:asyncio",
        conftest="""
        import pytest
        from headrace.testing import use_memory
        import shop

        @pytest.fixture
        def headrace_app(request):
            if "in_memory" not in request.node.name:
                yield shop.app
                return
            with use_memory(shop.app):
                yield shop.app
        """,
        test_shop="""
        import shop

        def test_drain(headrace_drain):
            shop.charge.enqueue(1)
            assert len(headrace_drain("billing")) == 1

        def test_in_memory(headrace_app, headrace_drain):
            shop.charge.enqueue(1)
            assert len(headrace_drain("billing")) == 1
        """,
    )
    assert "2 passed" in shown


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    mark = "@pytest.mark.asyncio" if mode == "strict" else ""
    shown = run_pytest(
        tmp_path,
        "-p",
        "no:anyio",
        ini=f"asyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\n",
        test_shop=f"""
        import asyncio
        import pytest
        from headrace.testing import assert_enqueued
        from shop import app, charge, paid, remind

        {mark}
        async def test_drain(headrace_app, headrace_adrain):
            await remind.aenqueue(7)
            assert_enqueued(remind, 7)
            assert [ran.task for ran in await headrace_adrain()] == ["remind", "charge"]

        {mark}
        async def test_inline(headrace_app):
            async with app.inline():
                assert await (await remind.aenqueue(8)).aresult() == "remember 8"
            assert paid[-1] == 8

        def test_sync(headrace_drain):
            remind.enqueue(9)
            assert len(headrace_drain()) == 2
        """,
    )
    assert "3 passed" in shown


def test_hooks_for_start_and_end(tmp_path: Path) -> None:
    shown = run_pytest(
        tmp_path,
        "-p",
        "no:anyio",
        ini="asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n",
        shop="""
        import asyncio
        from headrace import Headrace

        app = Headrace("postgresql://nowhere.invalid/none")
        loops = []

        @app.lifespan
        async def open_loop():
            loops.append(asyncio.get_running_loop())
            yield
            assert loops.pop() is asyncio.get_running_loop()

        @app.task(name="same_loop")
        async def same_loop() -> bool:
            return loops == [asyncio.get_running_loop()]
        """,
        test_shop="""
        from shop import app, loops, same_loop

        async def test_adrain(headrace_adrain):
            await same_loop.aenqueue()
            assert [ran.result for ran in await headrace_adrain()] == [True]
            assert loops == []

        async def test_async_inline(headrace_app):
            async with headrace_app.inline():
                assert await (await same_loop.aenqueue()).aresult() is True
            assert loops == []

        def test_drain(headrace_drain):
            same_loop.enqueue()
            same_loop.enqueue()
            assert [ran.result for ran in headrace_drain()] == [True, True]
            assert loops == []

        def test_inline(headrace_inline):
            assert len(loops) == 1
            assert same_loop.enqueue().result() is True

        def test_the_hooks_of_the_last_test_have_ended():
            assert loops == []
        """,
    )
    assert "5 passed" in shown


def test_anyio(tmp_path: Path) -> None:
    shown = run_pytest(
        tmp_path,
        "-p",
        "no:asyncio",
        test_shop="""
        import pytest
        from shop import app, charge, remind

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.anyio
        async def test_drain(headrace_adrain):
            await remind.aenqueue(7)
            assert len(await headrace_adrain()) == 2

        @pytest.mark.anyio
        async def test_inline(headrace_inline):
            assert await (await remind.aenqueue(8)).aresult() == "remember 8"
        """,
    )
    assert "2 passed" in shown


def test_unittest(tmp_path: Path) -> None:
    shown = run(
        tmp_path,
        "-W",
        "error",
        "-m",
        "unittest",
        "-v",
        test_shop="""
        import unittest
        from headrace.testing import adrain, assert_enqueued, drain, use_memory
        from shop import app, charge, remind

        class Sync(unittest.TestCase):
            def setUp(self):
                self.stand = self.enterContext(use_memory(app))

            def test_drain(self):
                charge.using(delay="5m").enqueue(1)
                self.assertEqual(drain(app), [])
                self.stand.clock.move("5m")
                self.assertEqual(len(drain(app)), 1)

            def test_inline(self):
                with app.inline():
                    self.assertEqual(remind.enqueue(7).result(), "remember 7")

        class Async(unittest.IsolatedAsyncioTestCase):
            async def asyncSetUp(self):
                await self.enterAsyncContext(use_memory(app))

            async def test_drain(self):
                await remind.aenqueue(7)
                assert_enqueued(remind, 7)
                self.assertEqual(len(await adrain(app)), 2)
        """,
    )
    assert "Ran 3 tests" in shown


def test_a_missing_app_is_explained(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(headrace_app): ...")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert 'headrace_app = "package.module:app"' in done.stdout


def test_a_run_that_does_not_use_it_imports_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        dedent("""
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.split(".")[0] == "headrace"}
            assert loaded == {"headrace", "headrace.errors", "headrace.testing", "headrace.testing.plugin"}
            assert not {"msgspec", "click", "rich"} & set(sys.modules)
        """)
    )
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
