"""Which columns of a table fit into the width of a terminal, and how wide each one is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

GAP = 2
"""Blanks between two columns."""
_NARROWEST = 6
"""A column that may give way keeps so many characters, also where nothing more can be left out."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, before its width is known."""

    header: str
    width: int
    """Of its longest cell or its header."""
    least: int | None = None
    """It may give way to this width before another column is left out. None: it is shown whole."""
    empty: bool = False
    """No cell has a text."""

    def down_to(self, least: int) -> int:
        """Its width if it gives way as far as it may."""
        return self.width if self.least is None else min(self.width, least)


def fit(columns: Sequence[Column], width: int, drop: Sequence[str] = ()) -> dict[int, int]:
    """The width of each column that is shown, by its place.

    If the table is too wide, columns without any text are left out, then those in `drop`, one after the other. The rest
    of the width goes to the columns that may give way. No text is ever folded between letters.
    """
    shown = dict(enumerate(columns))
    gone = [place for place, column in shown.items() if column.empty]
    gone += [place for name in drop for place, column in shown.items() if column.header == name and place not in gone]
    while gone and _total([column.down_to(column.least or 0) for column in shown.values()]) > width:
        del shown[gone.pop(0)]
    widths = {place: column.width for place, column in shown.items()}
    for floor in (None, _NARROWEST):
        least = {place: column.down_to(floor or column.least or 0) for place, column in shown.items()}
        # The widest gives way first, so that short texts stay whole.
        while _total(widths.values()) > width and (
            loose := [place for place in widths if widths[place] > least[place]]
        ):
            widths[max(loose, key=widths.__getitem__)] -= 1
    return widths


def _total(widths: Collection[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
