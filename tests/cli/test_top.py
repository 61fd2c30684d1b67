"""`headrace top`: figures of a real store with a real worker, and the way from a queue to why one job waits.

`DASHBOARD_PICTURES=docs/screenshots` writes the picture of the documentation. Otherwise the test writes no file.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, TabbedContent

from cli.shell import Shell
from cli.terminal import open_terminal
from headrace import Headrace, Limit, Retry
from headrace.cli.target import Target
from headrace.cli.top.app import OverviewScreen, TopApp
from headrace.cli.top.job import JobScreen
from headrace.cli.top.jobs import JobsScreen
from headrace.cli.top.widgets import FilterLine, KeyHelp, LiveTable, Question
from headrace.errors import Unavailable
from headrace.model.records import Stats
from headrace.store.contract import Store
from server.dashboard.browsing import PICTURES, ROOT

EVERY = 0.2
"""Seconds between two readings: the tests wait for what they show."""


class Shop:
    """A shop with a queue that moves, one that has stopped at a job, and one whose jobs die."""

    def __init__(self, url: str) -> None:
        self.app = Headrace(url)
        self.resized = asyncio.Event()
        self.charge = self.app.task(name="billing.charge", queue="billing", limits=[Limit("bank", rate="1000/s")])(
            self._charge
        )
        self.resize = self.app.task(name="images.resize", queue="images")(self._resize)
        self.invoice = self.app.task(name="mail.invoice", queue="mail", retry=Retry(max_attempts=1))(self._invoice)

    async def _charge(self, order: int, shop: str) -> int:
        return order

    async def _resize(self, image: str) -> None:
        await self.resized.wait()

    async def _invoice(self, order: int) -> None:
        raise ValueError(f"order {order} has no [bold]VAT[/bold] id")


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    shop = Shop(store_url)
    yield shop
    shop.resized.set()
    await shop.app.aclose()


@asynccontextmanager
async def opened(
    shop: Shop,
    *,
    queue: str | None = None,
    size: tuple[int, int] = (120, 32),
    front: type[Any] | None = None,
    url: str | None = None,
) -> AsyncGenerator[tuple[TopApp, Pilot[None]]]:
    """The app on a screen without a terminal. `url`: the store's URL as the title shows it."""
    store = shop.app.connect()
    await store.open()
    try:
        settings = shop.app.settings
        target = Target(settings if url is None else settings.replace(url=url), shop.app)
        shown = store if front is None else cast("Store", front(store))
        app = TopApp(shown, target, queue=queue, every=EVERY)
        async with app.run_test(size=size) as pilot:
            yield app, pilot
    finally:
        await store.close()


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Until it holds; the timeout of the test ends what never does."""
    while not condition():
        await pilot.pause(0.05)


def lines(app: TopApp, table: str) -> list[str]:
    """The rows of a table of the screen that is shown."""
    return app.screen.query_one(f"#{table}", LiveTable).lines


def text(app: TopApp, name: str) -> str:
    """A text of the screen that is shown."""
    return str(app.screen.query_one(f"#{name}", Static).content)


async def test_the_figures_of_queues_come_and_change(shop: Shop) -> None:
    await shop.app.aenqueue_many([shop.charge.job(number, "acme") for number in range(1200)])
    async with opened(shop) as (app, pilot):
        await until(pilot, lambda: any("billing  1,200  0  0  0" in line for line in lines(app, "queues")))
        assert "waiting 1,200" in text(app, "totals")
        async with shop.app.worker():
            await until(pilot, lambda: any("billing  0  0" in line for line in lines(app, "queues")))
            await until(pilot, lambda: "waiting 0  running 0" in text(app, "totals"))
            # The worker writes history every ten seconds, and `top` reads it every five.
            await until(pilot, lambda: app.figures.waits.get("billing"))
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis", "memory", "http"], indirect=True)
async def test_from_a_queue_to_its_jobs_to_why_one_waits(shop: Shop) -> None:
    handle = await shop.resize.aenqueue("a.jpg")
    await shop.charge.aenqueue(1, "acme")
    await shop.app.apause("images", by="ann")
    async with opened(shop) as (app, pilot):
        await until(pilot, lambda: len(lines(app, "queues")) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobsScreen) and lines(app, "jobs"))
        assert "images.resize" in lines(app, "jobs")[0]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and text(app, "why"))
        why = await handle.aexplain()
        assert re.sub(r"\(.*?\)", "", text(app, "why")) == re.sub(r"\(.*?\)", "", why.sentence)  # but for times
        assert "queue images is paused by ann" in why.sentence
        assert f"images.resize  {handle.id}" in text(app, "page")
        assert '"a.jpg"' in text(app, "page")
        # The page follows the job to its end.
        shop.resized.set()
        await shop.app.aresume("images")
        async with shop.app.worker():
            await until(pilot, lambda: "done" in text(app, "why"))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, JobsScreen))
        await until(pilot, lambda: "  done  " in lines(app, "jobs")[0])
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_running_jobs_workers_and_dead_jobs_by_bug(shop: Shop) -> None:
    async with shop.app.worker():
        for number in range(3):
            await shop.invoice.aenqueue(number)
        await shop.resize.aenqueue("a.jpg")
        async with opened(shop) as (app, pilot):
            await until(pilot, lambda: any("images.resize" in line for line in lines(app, "running-table")))
            await pilot.press("2")
            await until(pilot, lambda: lines(app, "workers-table"))
            (worker,) = lines(app, "workers-table")
            assert "billing, images, mail" in worker
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobsScreen) and lines(app, "jobs"))
            assert "images.resize" in lines(app, "jobs")[0]
            await pilot.press("escape", "3")
            await until(pilot, lambda: lines(app, "dead-table") and lines(app, "dead-table")[0].startswith("3  "))
            # What looks like markup is shown as it is.
            assert "has no [bold]VAT[/bold] id" in lines(app, "dead-table")[0]
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobsScreen) and len(lines(app, "jobs")) == 3)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen) and text(app, "page"))
            assert "ValueError: order" in text(app, "page")
            assert "Traceback" in text(app, "page")
        shop.resized.set()


async def test_p_asks_and_then_pauses_and_resumes(shop: Shop) -> None:
    await shop.charge.aenqueue(1, "acme")
    async with opened(shop) as (app, pilot):
        await until(pilot, lambda: lines(app, "queues"))
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
        assert await shop.app.apauses() == []
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen) and "paused" in lines(app, "queues")[0])
        (pause,) = await shop.app.apauses()
        assert (pause.kind, pause.name) == ("queue", "billing")
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen) and "paused" not in lines(app, "queues")[0])
        assert await shop.app.apauses() == []


async def test_a_text_filters_queues_and_jobs_and_escape_removes_it(shop: Shop) -> None:
    await shop.charge.aenqueue(1, "acme")
    await shop.resize.aenqueue("a.jpg")
    async with opened(shop) as (app, pilot):
        await until(pilot, lambda: len(lines(app, "queues")) == 2)
        await pilot.press("slash", *"IMAG", "enter")
        await until(pilot, lambda: [line.split()[0] for line in lines(app, "queues")] == ["images"])
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobsScreen) and lines(app, "jobs"))
        await pilot.press("slash", *"charge", "enter")
        await until(pilot, lambda: not lines(app, "jobs"))
        await pilot.press("slash", "escape")
        await until(pilot, lambda: lines(app, "jobs"))
        # Ready jobs, and not those of the next states.
        await pilot.press("s", "s")
        await until(pilot, lambda: "1 jobs, ready" in text(app, "totals"))
        await pilot.press("s")
        await until(pilot, lambda: "0 jobs, running" in text(app, "totals"))
        await pilot.press("escape", "slash", "escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen) and len(lines(app, "queues")) == 2)
        assert not app.screen.query_one(FilterLine).display


async def test_one_queue_shows_nothing_of_others(shop: Shop) -> None:
    await shop.charge.aenqueue(1, "acme")
    await shop.resize.aenqueue("a.jpg")
    async with opened(shop, queue="billing") as (app, pilot):
        await until(pilot, lambda: lines(app, "queues"))
        assert [line.split()[0] for line in lines(app, "queues")] == ["billing"]
        assert "waiting 1 " in text(app, "totals")
        assert "queue billing" in text(app, "title")


async def test_a_long_list_is_read_page_by_page(shop: Shop) -> None:
    handles = await shop.app.aenqueue_many([shop.charge.job(number, "acme") for number in range(150)])
    async with opened(shop) as (app, pilot):
        await until(pilot, lambda: lines(app, "queues"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobsScreen) and len(lines(app, "jobs")) == 100)
        await pilot.press("n")
        await until(pilot, lambda: len(lines(app, "jobs")) == 50)
        # The oldest job is the last of the second page.
        await pilot.press("ctrl+end", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and text(app, "page"))
        assert str(handles[0].id) in text(app, "page")
        await pilot.press("escape", "b")
        await until(pilot, lambda: len(lines(app, "jobs")) == 100)


async def test_the_keys_are_explained(shop: Shop) -> None:
    async with opened(shop) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, KeyHelp))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))


class Failing:
    """A store whose figures cannot be read while `away`."""

    away = False

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def stats(self) -> Stats:
        if Failing.away:
            raise Unavailable("the server does not answer")
        return await self._inner.stats()


async def test_the_figures_stay_while_the_store_is_away(shop: Shop) -> None:
    await shop.charge.aenqueue(1, "acme")
    async with opened(shop, front=Failing) as (app, pilot):
        await until(pilot, lambda: lines(app, "queues"))
        Failing.away = True
        try:
            await until(pilot, lambda: "store: the server does not answer" in text(app, "totals"))
            assert len(lines(app, "queues")) == 1
        finally:
            Failing.away = False
        await until(pilot, lambda: "waiting 1 " in text(app, "totals"))


class CountingStore:
    """A store that counts its calls."""

    calls: dict[str, int]

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        CountingStore.calls = {}

    def __getattr__(self, name: str) -> Any:
        CountingStore.calls[name] = CountingStore.calls.get(name, 0) + 1
        return getattr(self._inner, name)


async def test_a_reading_costs_the_figures_and_one_list(shop: Shop) -> None:
    await shop.charge.aenqueue(1, "acme")
    async with opened(shop, front=CountingStore) as (app, pilot):
        await until(pilot, lambda: lines(app, "queues"))
        # The dead jobs are read once, because their number does not change.
        await pilot.press("3")
        await until(pilot, lambda: app.screen.query_one(TabbedContent).active == "dead")
        await until(pilot, lambda: app.figures.dead_cut is False and app.figures.board.now is not None)
        CountingStore.calls.clear()
        await until(pilot, lambda: CountingStore.calls.get("stats", 0) >= 5)
        assert CountingStore.calls.get("find", 0) <= 1
        # In how many calls history is read depends on the time of day, and how often on the speed of the machine.
        assert set(CountingStore.calls) <= {"now", "stats", "find", "read_history", "workers"}


async def keep_charging(shop: Shop) -> None:
    """Orders come in until the task is cancelled."""
    while True:
        await shop.app.aenqueue_many([shop.charge.job(number, "acme") for number in range(20)])
        await asyncio.sleep(0.1)


async def test_the_picture_of_the_documentation(shop: Shop) -> None:
    async with shop.app.worker(), opened(shop, size=(110, 22), url="sqlite:///shop.db") as (app, pilot):
        charging = asyncio.create_task(keep_charging(shop))
        for number in range(12):
            await shop.invoice.aenqueue(number)
        for image in ("a", "b", "c"):
            await shop.resize.using(tenant="acme").aenqueue(f"{image}.jpg")
        await until(pilot, lambda: any(queue.dead == 12 for queue in app.figures.queues))
        await shop.app.apause("mail", by="ann")
        await shop.app.aenqueue_many([shop.invoice.job(number) for number in range(40)])
        await until(pilot, lambda: any("paused" in line for line in lines(app, "queues")))
        await until(pilot, lambda: sum("images.resize" in line for line in lines(app, "running-table")) == 3)
        await until(pilot, lambda: app.figures.waits.get("billing") and app.figures.rates.done)
        await pilot.pause()
        drawing = app.export_screenshot(title="headrace top")
        assert "images.resize" in drawing
        # A page of the documentation loads nothing from another server.
        drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)
        assert "url(" not in re.sub(r"url\(#[^)]*\)", "", drawing)
        assert len(drawing) < 150_000
        if folder := os.environ.get(PICTURES):
            (ROOT / folder / "top.svg").write_text(drawing, encoding="utf-8")
        charging.cancel()
        shop.resized.set()


@pytest.mark.parametrize("how", ["q", "Ctrl C", "SIGTERM"])
def test_it_ends_and_leaves_the_terminal_in_order(shell: Shell, how: str) -> None:
    shell.put(3, queue="billing")
    ours, theirs = open_terminal(100, 30)
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "top", "--queue", "billing"],
        cwd=shell.folder,
        env={**os.environ, "HEADRACE_URL": shell.url, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        printed = b""
        while b"waiting 3" not in printed:
            printed += os.read(ours, 65_536)
        if how == "SIGTERM":
            process.terminate()
        else:
            os.write(ours, b"q" if how == "q" else b"\x03")
        try:
            while part := os.read(ours, 65_536):
                printed += part
        except OSError:  # Linux answers EIO when the other end is closed.
            pass
        assert process.wait(timeout=120) == 0
    os.close(ours)
    # It entered the alternate screen and left it.
    assert printed.rindex(b"\x1b[?1049l") > printed.index(b"\x1b[?1049h")


def test_without_a_terminal_it_names_the_command_that_works_there(shell: Shell) -> None:
    assert shell.error("top", code=78) == "headrace top needs a terminal: `headrace stats` prints the figures anywhere"


def test_a_missing_package_is_named_with_the_command_that_installs_it(shell: Shell) -> None:
    code = "import sys; sys.modules['textual'] = None; from headrace.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "top", "--url", shell.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 78
    assert done.stderr == "error: headrace top needs textual: pip install 'headrace[tui]'\n"


def test_the_picture_is_in_the_repository() -> None:
    assert (Path(ROOT) / "docs" / "screenshots" / "top.svg").exists()
