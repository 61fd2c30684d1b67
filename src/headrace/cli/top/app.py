"""The app behind `headrace top`: its first screen, and what all screens share."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, TabbedContent, TabPane

from headrace.cli.output import clean, short
from headrace.cli.top.figures import ListName, TopFigures
from headrace.cli.top.job import JobScreen
from headrace.cli.top.jobs import JobsScreen
from headrace.cli.top.text import LIST_COLUMNS, QUEUE_COLUMNS, Row, totals
from headrace.cli.top.widgets import FilterLine, KeyHelp, LiveScreen, LiveTable, Question
from headrace.errors import HeadraceError
from headrace.model.job import JobState, parse_id
from headrace.model.records import Filter
from headrace.operate.operations import Operations

if TYPE_CHECKING:
    from headrace.cli.target import Target
    from headrace.store.contract import Store

EVERY = 1.0
"""Seconds between two readings."""
_KEYS = (
    ("↑ ↓", "selects a row"),
    ("Enter", "opens the jobs of a queue, worker or bug; a job"),
    ("Tab", "goes to the next table"),
    ("1 2 3", "running jobs, workers, dead jobs by bug"),
    ("/", "filters the rows by a text"),
    ("p", "pauses or resumes the queue, after a question"),
    ("s", "in a list of jobs: the next state"),
    ("n, b", "in a list of jobs: older ones, the newest again"),
    ("Escape", "goes back"),
    ("q", "ends"),
)
_LISTS: tuple[tuple[ListName, str], ...] = (("running", "1 Running"), ("workers", "2 Workers"), ("dead", "3 Dead"))


class OverviewScreen(LiveScreen):
    """The queues, and below them running jobs, workers or dead jobs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("p", "pause", "Pause or resume"),
        Binding("1", "list('running')", "Running", show=False),
        Binding("2", "list('workers')", "Workers", show=False),
        Binding("3", "list('dead')", "Dead", show=False),
    ]

    def __init__(self, figures: TopFigures, *, every: float) -> None:
        super().__init__(figures, every=every)
        self._text = ""

    def compose(self) -> ComposeResult:
        """The title, the figures of all queues, the tables."""
        yield Static(id="title", markup=False)
        yield Static(id="totals", markup=False)
        yield LiveTable(QUEUE_COLUMNS, id="queues")
        with TabbedContent(initial="running"):
            for name, title in _LISTS:
                with TabPane(title, id=name):
                    yield LiveTable(LIST_COLUMNS[name], id=f"{name}-table")
        yield FilterLine()
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#queues").focus()
        self.read_on()

    @property
    def shown(self) -> ListName:
        """The list below the queues."""
        active = self.query_one(TabbedContent).active
        return "workers" if active == "workers" else "dead" if active == "dead" else "running"

    async def look(self) -> None:
        """Read the figures, and the list that is shown."""
        await self.figures.look(self.shown)

    def draw(self) -> bool:
        """Write what was read into the tables."""
        figures, board = self.figures, self.figures.board
        where = figures.target.shown_url + (f" — queue {figures.queue}" if figures.queue else "")
        clock = board.now.strftime("%H:%M:%S UTC") if board.now else ""
        self.query_one("#title", Static).update(Text(f"headrace top — {clock} — {clean(where)}", style="bold"))
        line = Text(totals(figures.queues, figures.rates), no_wrap=True, overflow="ellipsis")
        line.append(f"  {figures.throughput(24)}", style="green")
        if board.trouble is not None:
            line = Text(f"store: {short(board.trouble, 200)}", style="bold red")
        self.query_one("#totals", Static).update(line)
        self.query_one("#queues", LiveTable).write(self._kept(figures.queue_rows()))
        for name, title in _LISTS:
            if name == self.shown:
                self.query_one(f"#{name}-table", LiveTable).write(self._kept(figures.list_rows(name)))
            tab = self.query_one(TabbedContent).get_tab(name)
            tab.label = f"{title} (the newest)" if name == "dead" and figures.dead_cut else title
        return False

    def _kept(self, rows: list[Row]) -> list[Row]:
        text = self._text.lower()
        return [row for row in rows if text in " ".join(row.cells).lower()]

    # ── keys ────────────────────────────────────────────────────────────────

    def action_filter(self) -> None:
        """Ask for a text."""
        self.query_one(FilterLine).begin()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show only rows with that text."""
        self._text = event.value
        event.input.display = bool(event.value)
        self.query_one("#queues").focus()
        self.draw()

    def action_list(self, name: ListName) -> None:
        """Show another list, and go to it."""
        self.query_one(TabbedContent).active = name
        self.query_one(f"#{name}-table").focus()
        self.read_soon()

    def on_tabbed_content_tab_activated(self) -> None:
        """Read the list that the mouse or an arrow has chosen."""
        self.read_soon()

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """Open what the row stands for."""
        key = event.key
        if event.table.id == "queues":
            self._open(Filter(queue=key), f"queue {key}")
        elif self.shown == "running":
            self.top.push_screen(JobScreen(self.figures, parse_id(key), every=self.every))
        elif self.shown == "dead":
            dead = Filter(states=frozenset({JobState.DEAD}), queue=self.figures.queue)
            self._open(dead, f"dead jobs of bug {key}", bug=key)
        else:
            name = next((worker.name for worker in self.figures.workers if str(worker.id) == key), "")
            running = Filter(states=frozenset({JobState.RUNNING}), queue=self.figures.queue)
            self._open(running, f"jobs that {name} runs", worker=key)

    def _open(self, where: Filter, title: str, *, bug: str | None = None, worker: str | None = None) -> None:
        self.top.push_screen(JobsScreen(self.figures, where, title, every=self.every, bug=bug, worker=worker))

    @work(exclusive=True, group="pause")
    async def action_pause(self) -> None:
        """Pause the selected queue, or resume it."""
        name = self.query_one("#queues", LiveTable).selected
        queue = next((queue for queue in self.figures.queues if queue.queue == name), None)
        if queue is None:
            return
        verb = "resume" if queue.paused else "pause"
        if not await self.top.push_screen_wait(Question(f"{verb} queue {queue.queue}?")):
            return
        pauses = Operations(self.figures.store).pauses
        try:
            await (pauses.resume(queue.queue) if queue.paused else pauses.pause(queue.queue))
        except HeadraceError as error:
            self.notify(clean(error), title=f"queue {queue.queue}", severity="error", markup=False)
        else:
            self.notify(f"queue {queue.queue} is {verb}d", markup=False)
        self.read_soon()


class TopApp(App[None]):
    """Queues, workers and jobs live in a terminal."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "headrace top"
    CSS = """
    #title, #totals { height: 1; padding: 0 1; }
    #totals { margin-bottom: 1; }
    DataTable { height: 1fr; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    #filter { dock: bottom; margin-bottom: 1; }
    #why { padding: 1 2; background: $boost; }
    #page { padding: 1 2; }
    Question, KeyHelp { align: center middle; background: $background 60%; }
    .dialog { width: auto; max-width: 90%; height: auto; padding: 1 3; border: round $accent; background: $surface; }
    .dialog Static { width: auto; }
    .keys { margin-top: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "Keys"),
        Binding("q,ctrl+c", "quit", "Quit", priority=False),
    ]

    def __init__(self, store: Store, target: Target, *, queue: str | None = None, every: float = EVERY) -> None:
        super().__init__()
        self.figures = TopFigures(store, target, queue)
        self._every = every

    async def run_until_ended(self) -> None:
        """Run on the terminal. SIGTERM ends it like `q`, so that the terminal is left in order."""
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        await self.run_async()

    def get_default_screen(self) -> Screen[None]:
        """The overview."""
        return OverviewScreen(self.figures, every=self._every)

    def action_keys(self) -> None:
        """Show what the keys do."""
        self.push_screen(KeyHelp(_KEYS))
