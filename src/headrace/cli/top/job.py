"""One job: why it is not running, and everything that `headrace jobs show` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from headrace.cli import show
from headrace.cli.output import clean, short
from headrace.cli.top.widgets import LiveScreen
from headrace.errors import StoreError

if TYPE_CHECKING:
    from headrace.cli.top.figures import TopFigures
    from headrace.model.job import JobId


class JobScreen(LiveScreen):
    """One job, read again until it has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,left", "app.pop_screen", "Back")]

    def __init__(self, figures: TopFigures, id: JobId, *, every: float) -> None:
        super().__init__(figures, every=every)
        self._job = id
        self._why = Text()
        self._page = Text()
        self._ended = False

    def compose(self) -> ComposeResult:
        """The explanation, and the page below it."""
        yield Static(id="title", markup=False)
        yield Static(id="why", markup=False)
        with VerticalScroll():
            yield Static(id="page", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#title", Static).update(Text(f"headrace top — job {self._job}", style="bold"))
        self.query_one(VerticalScroll).focus()
        self.read_on()

    async def look(self) -> None:
        """Read the job and what it waits for."""
        store, target = self.figures.store, self.figures.target
        try:
            answer = await show.explanation(store, self._job, target)
            now = await store.now()
        except StoreError as error:
            self._why = Text(f"store: {short(error, 200)}", style="bold red")
            return
        if answer is None:
            self._why, self._ended = Text("There is no such job: it was pruned or deleted."), True
            return
        job, explanation = answer
        self._why, self._page = Text(clean(explanation.sentence), style="bold"), Text(show.page(job, target, now))
        self._ended = job.state.finished

    def draw(self) -> bool:
        """Show the job. It does not change after its end, unless an operator moves it."""
        self.query_one("#why", Static).update(self._why)
        self.query_one("#page", Static).update(self._page)
        return self._ended
