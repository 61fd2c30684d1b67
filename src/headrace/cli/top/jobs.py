"""The jobs of a queue, a worker or a bug."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Input, Static

from headrace.cli import show
from headrace.cli.output import clean, short
from headrace.cli.top.job import JobScreen
from headrace.cli.top.text import JOB_COLUMNS, STATES, Row, job_row
from headrace.cli.top.widgets import FilterLine, LiveScreen, LiveTable
from headrace.errors import StoreError
from headrace.model.job import Job, JobId, parse_id
from headrace.policy import fingerprint

if TYPE_CHECKING:
    from headrace.cli.top.figures import TopFigures
    from headrace.model.records import Filter


class JobsScreen(LiveScreen):
    """Jobs by filter, newest first, a page at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,left", "app.pop_screen", "Back"),
        Binding("slash", "filter", "Filter"),
        Binding("s", "state", "State"),
        Binding("n", "older", "Older"),
        Binding("b", "newest", "Newest"),
    ]

    def __init__(
        self,
        figures: TopFigures,
        where: Filter,
        title: str,
        *,
        every: float,
        bug: str | None = None,
        worker: str | None = None,
    ) -> None:
        """`bug`: only dead jobs with this fingerprint. `worker`: only jobs that this worker runs."""
        super().__init__(figures, every=2 * every)
        self._where = where
        self._of = title
        self._bug = bug
        self._worker = worker
        self._before: JobId | None = None
        self._next: JobId | None = None
        self._rows: list[Row] = []
        self._trouble: str | None = None

    def compose(self) -> ComposeResult:
        """The title and the table."""
        yield Static(id="title", markup=False)
        yield Static(id="totals", markup=False)
        yield LiveTable(JOB_COLUMNS, id="jobs")
        yield FilterLine()
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#jobs").focus()
        self.read_on()

    async def look(self) -> None:
        """Read the page."""
        store = self.figures.store
        try:
            page = await self.figures.jobs(self._where, before=self._before)
            jobs = [job for job in await show.with_failures(store, page.jobs) if self._fits(job)]
            now = await store.now()
        except StoreError as error:
            self._trouble = str(error)
            return
        self._rows = [job_row(job, now) for job in jobs]
        self._next, self._trouble = page.next, None

    def draw(self) -> bool:
        """Write the page into the table."""
        self.query_one("#title", Static).update(Text(f"headrace top — {clean(self._of)}", style="bold"))
        line = Text(f"store: {short(self._trouble, 200)}", style="bold red") if self._trouble else Text(self._summary())
        self.query_one("#totals", Static).update(line)
        self.query_one("#jobs", LiveTable).write(self._rows)
        return False

    def _summary(self) -> str:
        states = ", ".join(sorted(self._where.states)) or "all states"
        text = f", with {clean(self._where.text)!r}" if self._where.text else ""
        place = "" if self._before is None else ", older ones"
        more = "; n shows older ones" if self._next is not None else ""
        return f"{len(self._rows):,} jobs, {states}{text}{place}{more}"

    def _fits(self, job: Job) -> bool:
        if self._worker is not None:
            return str(job.worker) == self._worker
        return self._bug is None or fingerprint.of_job(job).id == self._bug

    # ── keys ────────────────────────────────────────────────────────────────

    def on_live_table_opened(self, event: LiveTable.Opened) -> None:
        """Open the job."""
        self.top.push_screen(JobScreen(self.figures, parse_id(event.key), every=self.every / 2))

    def action_filter(self) -> None:
        """Ask for a text."""
        self.query_one(FilterLine).begin()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show only jobs with that text in the task, the note or a failure."""
        self._where = replace(self._where, text=event.value or None)
        event.input.display = bool(event.value)
        self.query_one("#jobs").focus()
        self.action_newest()

    def action_state(self) -> None:
        """Show the jobs of the next state. A bug has dead jobs only, and a worker running ones."""
        if self._bug is not None or self._worker is not None:
            return
        now = next(iter(self._where.states), None)
        state = STATES[(STATES.index(now) + 1) % len(STATES)]
        self._where = replace(self._where, states=frozenset() if state is None else frozenset({state}))
        self.action_newest()

    def action_older(self) -> None:
        """Turn the page."""
        if self._next is not None:
            self._before = self._next
            self.read_soon()

    def action_newest(self) -> None:
        """Go to the first page."""
        self._before = None
        self.read_soon()
