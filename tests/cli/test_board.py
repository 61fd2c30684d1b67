"""The live view: rates from differences, a sparkline, and a drawn board that says what matters."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from headrace.cli import view
from headrace.cli.board import Board, rate, sparkline
from headrace.errors import Unavailable
from headrace.model.job import Batch, Failure, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import DONE, Again, Finish
from headrace.model.records import Stats
from headrace.model.short_id import shorten
from headrace.operate.limits import Limits
from headrace.operate.operations import Operations
from headrace.policy.schedule import declare
from headrace.store.memory import MemoryStore
from headrace.task.limit import LimitDeclaration, LimitFigures
from headrace.testing.clock import FakeClock


@pytest.fixture
def busy(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def settle(store: MemoryStore, clock: FakeClock) -> None:
    """Four jobs: one done, one dead, one retrying, one running."""
    jobs = [NewJob(f"shop.{number}", b"\x92\x90\x80", Lane("mail")) for number in range(4)]
    await store.enqueue(Batch(new_batch(), jobs))
    lease = await store.claim(Ask(new_worker_id(), ("mail",), 4, timedelta(seconds=15), new_token()))
    assert lease is not None
    failure = Failure(1, "builtins.ValueError", "no \x1b[31mmoney", "…", clock.now())
    dead = Finish(JobState.DEAD, note="max_attempts", failure=failure, failures=1)
    again = Again(1, 0, due=timedelta(seconds=30), failure=failure)
    await store.settle(lease.token, [(0, DONE), (1, dead), (2, again)])


async def test_rates_are_differences(busy: MemoryStore, clock: FakeClock) -> None:
    board = Board()
    await board.look(busy, jobs=5)
    clock.advance(2)
    await settle(busy, clock)
    await board.look(busy, jobs=5)
    assert (board.rates.enqueued, board.rates.done, board.rates.failed) == (2.0, 0.5, 1.0)
    assert (board.total("running"), board.total("scheduled"), board.total("dead")) == (1, 1, 1)
    assert [job.task for job in board.running] == ["shop.3"]
    assert [job.task for job in board.retrying] == ["shop.2"]
    assert [job.task for job in board.dead] == ["shop.1"]
    assert list(board.history) == [0.5]


async def test_a_store_that_is_away_leaves_the_old_figures(
    busy: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    await settle(busy, clock)
    await board.look(busy, jobs=5)

    async def away() -> Stats:
        raise Unavailable("the server is away")

    monkeypatch.setattr(busy, "stats", away)
    await board.look(busy, jobs=5)
    assert (board.trouble, board.total("running")) == ("the server is away", 1)


async def test_the_drawn_board(busy: MemoryStore, clock: FakeClock) -> None:
    board = Board()
    await settle(busy, clock)
    await board.look(busy, jobs=5)
    page = StringIO()
    Console(file=page, width=120, color_system=None).print(view.render(board, ["headrace dev"], width=120, height=40))
    text = page.getvalue()
    for part in ("headrace dev", "mail", "running", "shop.3", "retrying", "again in 30s", "max_attempts"):
        assert part in text
    assert "\x1b" not in text


async def test_the_board_fits_a_small_terminal(busy: MemoryStore, clock: FakeClock) -> None:
    board = Board()
    for _ in range(8):
        await settle(busy, clock)
        await board.look(busy, jobs=view.JOBS)
        clock.advance(1)
    address = "http://127.0.0.1:8200/"
    title = ("headrace dev", "examples.demo:app on sqlite:///headrace.db", address, "Ctrl-C drains and ends")
    page = StringIO()
    out = Console(file=page, width=80, height=24, color_system=None)
    out.print(view.render(board, title, width=80, height=24))
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    assert max(len(line) for line in lines) <= 80
    assert len(lines) <= 24
    text = "\n".join(lines)
    for part in (*title, "scheduled", "running", "retrying", " dead ", "ValueError: no", "/s failed"):
        assert part in text, text


async def test_the_board_names_pauses_limits_schedules_and_commands(busy: MemoryStore, clock: FakeClock) -> None:
    await busy.pause("acme", kind="tenant", by="ana", until=clock.now() + timedelta(minutes=5))
    await Limits(busy).declare({"bank": LimitDeclaration(figures=LimitFigures(rate=1.5))})
    schedule = declare("digest", every="10s", job=NewJob("mail.digest", b"\x92\x90\x80", Lane("mail")))
    await Operations(busy).schedules.add(schedule)
    await busy.enqueue(
        Batch(batch := new_batch(), [NewJob("shop.charge", b"\x92\x90\x80", Lane("mail", tenant="acme"))])
    )
    board = Board()
    await board.look(busy, jobs=5)
    page = StringIO()
    Console(file=page, width=80, height=24, color_system=None).print(view.render(board, ["dev"], width=80, height=24))
    for part in (
        "paused    tenant acme, ends in 5m",
        "limits    bank 1.5/s burst 1",
        "schedules digest in 10s",
        f"try       headrace jobs explain {shorten(job_id(batch, 0))}; headrace limits list",
    ):
        assert part in page.getvalue(), page.getvalue()


async def test_a_line(busy: MemoryStore, clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    board = Board()
    await settle(busy, clock)
    await board.look(busy, jobs=0)
    view.print_line(board)
    assert "ready 0  scheduled 1  blocked 0  running 1  dead 1  |" in capsys.readouterr().out


def test_sparkline() -> None:
    assert sparkline(deque([0.0, 5.0, 10.0])) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.25, "0.2"), (12.34, "12.3"), (12345.6, "12,346")])
def test_rate(value: float, text: str) -> None:
    assert rate(value) == text
