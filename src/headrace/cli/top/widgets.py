"""The parts of the screens: reading again and again, a table whose rows keep their place, a filter, two small dialogs."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Input, Static

from headrace.cli.top.text import RIGHT, Row

if TYPE_CHECKING:
    from headrace.cli.top.figures import TopFigures


class LiveScreen(Screen[None]):
    """A screen that reads the store again and again while it is shown."""

    def __init__(self, figures: TopFigures, *, every: float) -> None:
        """`every`: seconds between two readings."""
        super().__init__()
        self.figures = figures
        self.every = every
        self._wanted = asyncio.Event()

    @property
    def top(self) -> App[None]:
        """The app of this screen."""
        return cast("App[None]", self.app)  # pyright: ignore[reportUnknownMemberType]  # Textual does not say which app

    @abstractmethod
    async def look(self) -> None:
        """Read the store."""

    @abstractmethod
    def draw(self) -> bool:
        """Show what was read. Returns whether there is nothing more to read."""

    def read_soon(self) -> None:
        """Read at once, and not when the time between two readings is over."""
        self._wanted.set()

    @work(group="reading")
    async def read_on(self) -> None:
        """Read while this screen, or a dialog above it, is shown. A call that has begun is never cut off."""
        while True:
            self._wanted.clear()
            if self.is_current or isinstance(self.top.screen, ModalScreen):
                await self.look()
                # The screen may have been left during the call.
                if not (self.top.is_running and self.is_running and self.is_attached) or self.draw():
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self.every)


class LiveTable(DataTable[Text]):
    """A table that is written again each second. The cursor stays on what it stands on, wherever its row goes."""

    class Opened(Message):
        """The user has opened a row."""

        def __init__(self, table: LiveTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

    def __init__(self, columns: Sequence[str], *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row")
        self._titles = tuple(columns)
        self._rows: list[Row] = []

    def on_mount(self) -> None:
        """Make the columns."""
        for title in self._titles:
            self.add_column(Text(title, justify="right" if title in RIGHT else "left"), key=title or "-")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Tell the screen, in terms of the row's key."""
        event.stop()
        self.post_message(self.Opened(self, event.row_key.value or ""))

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._rows[self.cursor_row].key if 0 <= self.cursor_row < len(self._rows) else None

    @property
    def lines(self) -> list[str]:
        """The rows as text, for tests and for reading aloud."""
        return ["  ".join(row.cells) for row in self._rows]

    def write(self, rows: Sequence[Row]) -> None:
        """Show these rows."""
        if [row.key for row in rows] == [row.key for row in self._rows]:
            self._rewrite(rows)
            return
        key, place = self.selected, self.cursor_row
        self.clear()
        self._rows = list(rows)
        for row in rows:
            self.add_row(*self._cells(row), key=row.key)
        keys = [row.key for row in rows]
        self.move_cursor(row=keys.index(key) if key in keys else min(place, len(rows) - 1))

    def _rewrite(self, rows: Sequence[Row]) -> None:
        for before, row in zip(self._rows, rows, strict=True):
            if before == row:
                continue
            for title, cell in zip(self._titles, self._cells(row), strict=True):
                self.update_cell(row.key, title or "-", cell, update_width=True)
        self._rows = list(rows)

    def _cells(self, row: Row) -> list[Text]:
        return [
            Text(cell, style=row.style, justify="right" if title in RIGHT else "left")
            for title, cell in zip(self._titles, row.cells, strict=True)
        ]


class FilterLine(Input):
    """A line for a text that rows must contain. Enter applies it, Escape removes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "No filter")]

    def __init__(self) -> None:
        super().__init__(placeholder="a text; Enter filters, Escape shows everything", compact=True, id="filter")
        self.display = False

    def begin(self) -> None:
        """Show the line, ready to type."""
        self.display = True
        self.focus()

    def action_leave(self) -> None:
        """Remove the filter."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class Question(ModalScreen[bool]):
    """A question with the answers yes and no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical(classes="dialog"):
            yield Static(self._text, markup=False)
            yield Static("y: yes    n: no", classes="keys", markup=False)

    def action_answer(self, answer: bool) -> None:
        """Close the dialog with the answer."""
        self.dismiss(answer)


class KeyHelp(ModalScreen[None]):
    """What the keys do. Any key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space", "dismiss", "Close")]

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """One line for each key."""
        with Vertical(classes="dialog"):
            for key, text in self._lines:
                yield Static(f"{key:<12} {text}", markup=False)
