"""Draws docs/internals/floors.svg and docs/internals/way-of-a-job.svg from the imports of the package.

`python scripts/draw_floors.py` writes both files. `tests/docs/test_drawings.py` fails while the files in the repository
differ from what this script draws.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
DRAWINGS = ROOT / "docs" / "internals"
WIDTH = 900
"""Pixels. GitHub shows a page about as wide as this."""

STYLE = """
  .ground { fill: #ffffff; }
  .band { fill: #f3f5f8; }
  .box { fill: #ffffff; stroke: #7a8699; }
  .value { fill: #e8f1ea; stroke: #5f8a6b; }
  .dot { fill: #2f6fb3; }
  .grid { stroke: #d5dbe3; }
  .way { fill: none; stroke: #2f6fb3; stroke-width: 1.6; }
  .wait { fill: none; stroke: #2f6fb3; stroke-width: 1.6; stroke-dasharray: 4 4; }
  .tip { fill: #2f6fb3; }
  .number { fill: #ffffff; font-size: 10px; font-weight: 600; }
  text { fill: #1c2430; font-family: system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
  .name { font-size: 13px; font-weight: 600; font-family: ui-monospace, "Liberation Mono", Menlo, monospace; }
  .file { font-size: 11.5px; font-family: ui-monospace, "Liberation Mono", Menlo, monospace; }
  .small { font-size: 11.5px; }
  .quiet { fill: #5a6675; }
  .head { font-size: 14px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0f141b; }
    .band { fill: #19212b; }
    .box { fill: #0f141b; stroke: #8794a6; }
    .value { fill: #17281d; stroke: #7fb08c; }
    .dot, .tip { fill: #6cb0f5; }
    .grid { stroke: #2c3744; }
    .way, .wait { stroke: #6cb0f5; }
    .number { fill: #0f141b; }
    text { fill: #e6ebf2; }
    .quiet { fill: #a3afbf; }
  }
"""


class WrongMap(Exception):
    """The script names something that the package does not hold."""


# ── what the package says ────────────────────────────────────────────────────


class Imports:
    """Which package imports which, and the floors that follow from it."""

    def __init__(self) -> None:
        self.modules = grimp.build_graph("headrace", cache_dir=None)
        for pair in _ignored():
            importer, imported = pair.split(" -> ")
            self.modules.remove_import(importer=importer, imported=imported)
        self.below: dict[str, set[str]] = {}
        for module in self.modules.modules:
            package = package_of(module)
            if package is not None:
                found = {package_of(name) for name in self.modules.find_modules_directly_imported_by(module)}
                self.below.setdefault(package, set()).update(name for name in found if name and name != package)

    def level(self, package: str) -> int:
        """A package stands one floor above the highest package that it imports."""
        return 1 + max((self.level(name) for name in self.below[package]), default=0)

    def order(self) -> list[str]:
        """All packages, from the top floor to the bottom."""
        return sorted(self.below, key=lambda name: (-self.level(name), name))

    def linked(self, one: str, other: str) -> bool:
        """Whether one of two modules imports the other, directly or through further modules."""
        return self.modules.chain_exists(one, other) or self.modules.chain_exists(other, one)


def _ignored() -> list[str]:
    """Imports that only annotations need; the import contracts except the same ones."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return [pair for contract in contracts for pair in contract.get("ignore_imports", [])]


def package_of(module: str) -> str | None:
    """The first name below `headrace`; None for the package itself, which only names what users may import."""
    names = module.split(".")
    return names[1] if len(names) > 1 else None


def purposes() -> dict[str, str]:
    """What each package is for, from the tree in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^[├└]── (\w+)(?:\.py|/)\s+(\S.*)$", text, re.MULTILINE))


def check_name(module: str, name: str) -> None:
    """A WrongMap unless the module defines this class, function, method or value."""
    path = SOURCE / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = next((node for node in body if part in _defined(node)), None)
        if found is None:
            raise WrongMap(f"{module} defines no {name}")
        body = found.body if isinstance(found, ast.ClassDef) else []


def _defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case _:
            return set()


# ── the floors ───────────────────────────────────────────────────────────────

ROW, DOT, LEFT, TOP = 34, 19, 16, 108


def draw_floors(imports: Imports) -> str:
    """Every package on its floor, with a dot for each package that it imports."""
    order, said = imports.order(), purposes()
    columns = [name for name in order if any(name in below for below in imports.below.values())]
    first = WIDTH - LEFT - DOT * len(columns)
    parts = [
        _text(LEFT, 28, "The floors of headrace", "head"),
        _text(LEFT, 48, "A package imports only packages below it.", "small quiet"),
        _text(LEFT, 66, "A dot names one that it imports.", "small quiet"),
    ]
    for place, name in enumerate(columns):
        x = first + DOT * place + DOT / 2
        parts.append(
            f'<text class="small" transform="translate({x + 4:g} {TOP - 8}) rotate(-90)">{escape(_shown(name))}</text>'
        )
    y = TOP
    for place, name in enumerate(order):
        level = imports.level(name)
        if level % 2 == 0:
            parts.append(f'<rect class="band" x="0" y="{y}" width="{WIDTH}" height="{ROW}"/>')
        if place and level == imports.level(order[place - 1]):
            parts.append(f'<line class="grid" x1="{LEFT + 30}" x2="{WIDTH - LEFT}" y1="{y}" y2="{y}"/>')
        else:
            parts.append(_text(LEFT, y + 22, str(level), "small quiet"))
        parts.append(_text(LEFT + 30, y + 22, _shown(name), "name"))
        lines = textwrap.wrap(said[name].replace("`", ""), 62)
        for number, line in enumerate(lines):
            parts.append(_text(LEFT + 150, y + 22 - 7 * (len(lines) - 1) + 14 * number, line, "small"))
        for column, below in enumerate(columns):
            x = first + DOT * column + DOT / 2
            if below in imports.below[name]:
                parts.append(f'<circle class="dot" cx="{x:g}" cy="{y + ROW / 2:g}" r="4.5"/>')
            elif below == name:
                parts.append(
                    f'<line class="grid" x1="{x - 4:g}" x2="{x + 4:g}" y1="{y + ROW / 2:g}" y2="{y + ROW / 2:g}"/>'
                )
        y += ROW
    return _document(y + 14, "The packages of headrace, and which package imports which", parts)


def _shown(name: str) -> str:
    return f"{name}.py" if (SOURCE / "headrace" / f"{name}.py").exists() else f"{name}/"


# ── the way of a job ─────────────────────────────────────────────────────────


class Station(NamedTuple):
    """One call on the way: where it is defined, and the step that it belongs to."""

    step: int
    module: str
    name: str


STEPS = ("enqueue", "store", "claim", "run", "settle")
LANES = ("app", "worker", "client", "store", "policy", "task", "model")
WAY = (
    Station(0, "task.task", "Task.enqueue"),
    Station(0, "app", "_Home.aput"),
    Station(0, "client.client", "Client.place"),
    Station(1, "store.contract", "Store.enqueue"),
    Station(2, "worker.fetcher", "Fetcher.run"),
    Station(2, "policy.flow", "Planner.plan"),
    Station(2, "store.contract", "Store.claim"),
    Station(3, "worker.executor", "Executor.deliver"),
    Station(3, "worker.slots", "LoopSlots.put"),
    Station(3, "worker.outcome_of", "of_result"),
    Station(4, "worker.settler", "Settler.take"),
    Station(4, "policy.retry", "decide"),
    Station(4, "worker.writer", "Writer.write"),
    Station(4, "store.contract", "Store.settle"),
)
VALUES = (
    Station(0, "model.job", "NewJob"),
    Station(1, "model.job", "Batch"),
    Station(2, "model.lease", "Lease"),
    Station(3, "model.outcome", "Outcome"),
    Station(4, "model.outcome", "Settlement"),
)
CALLS = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6), (4, 7), (7, 8), (8, 9), (9, 10), (10, 11), (10, 12), (12, 13))
"""Which station hands the job to which, by place in WAY."""
WAITS = (3, 4)
"""Between these two the job waits in the store: the producer's process ends there, and a worker's begins."""

LANE, COLUMN, GAP = 76, 161, 26
BOX_HEIGHT, BOX_STEP = 38, 50


def draw_way(imports: Imports) -> str:
    """The calls that a job passes, one column for each step and one row for each floor."""
    _check_way(imports)
    tops = _lane_tops()
    boxes = [_box(place, tops) for place in range(len(WAY))]
    parts = [
        _text(LEFT, 28, "The way of a job through the floors", "head"),
        _text(
            LEFT,
            48,
            "The numbers are the order of the calls. On the dashed line the job waits in the store.",
            "small quiet",
        ),
    ]
    parts += [_text(_left(step), 76, f"{name}", "name") for step, name in enumerate(STEPS)]
    for place, lane in enumerate(LANES):
        top, height = tops[lane]
        if place % 2 == 0:
            parts.append(f'<rect class="band" x="0" y="{top:g}" width="{WIDTH}" height="{height:g}"/>')
        parts.append(_text(LEFT, top + 27, _shown(lane), "name"))
    parts += [_arrow(boxes, *call, dashed=call == WAITS) for call in CALLS]
    for number, (station, (x, y)) in enumerate(zip(WAY, boxes, strict=True), start=1):
        parts += _station(station, x, y, "box")
        parts += [
            f'<circle class="tip" cx="{x:g}" cy="{y:g}" r="8.5"/>',
            _text(x, y + 3.5, str(number), "number", "middle"),
        ]
    for station in VALUES:
        parts += _station(station, _left(station.step), tops["model"][0] + 11, "value")
    bottom = sum(tops["model"])
    parts.append(_text(LEFT, bottom + 18, "The bottom row holds the value that each step hands on.", "small quiet"))
    return _document(bottom + 30, "The calls that a job passes from enqueue to settle", parts)


def _check_way(imports: Imports) -> None:
    for station in (*WAY, *VALUES):
        check_name(f"headrace.{station.module}", station.name)
    for one, other in CALLS:
        first, second = f"headrace.{WAY[one].module}", f"headrace.{WAY[other].module}"
        if first != second and not imports.linked(first, second):
            raise WrongMap(f"neither of {first} and {second} imports the other")
    levels = [imports.level(lane) for lane in LANES]
    if levels != sorted(levels, reverse=True):
        raise WrongMap(f"the rows {LANES} are not in the order of the floors: {levels}")


def _lane_tops() -> dict[str, tuple[float, float]]:
    """Where each row begins, and its height: as many boxes as one step has there."""
    tops: dict[str, tuple[float, float]] = {}
    top = 90.0
    for lane in LANES:
        most = max([sum(s.step == step and _lane(s) == lane for s in WAY) for step in range(len(STEPS))] + [1])
        height = BOX_STEP * most + 10
        tops[lane] = (top, height)
        top += height
    return tops


def _lane(station: Station) -> str:
    return station.module.split(".")[0]


def _left(step: int) -> float:
    return LEFT + LANE + COLUMN * step


def _box(place: int, tops: dict[str, tuple[float, float]]) -> tuple[float, float]:
    station = WAY[place]
    above = sum(other.step == station.step and _lane(other) == _lane(station) for other in WAY[:place])
    return _left(station.step), tops[_lane(station)][0] + 11 + BOX_STEP * above


def _arrow(boxes: list[tuple[float, float]], one: int, other: int, *, dashed: bool) -> str:
    """A line with a tip: straight where nothing lies between two boxes, otherwise beside the column."""
    (x, y), (to_x, to_y) = boxes[one], boxes[other]
    wide, middle = COLUMN - GAP, BOX_HEIGHT / 2
    between = any(bx == x and min(y, to_y) < by < max(y, to_y) for bx, by in boxes)
    if to_x != x:
        turn = to_x - GAP / 2 + 2
        path = f"M{x + wide:g} {y + middle:g} H{turn:g} V{to_y + middle:g} H{to_x - 5:g}"
        tip = (to_x, to_y + middle, "right")
    elif between:
        # Upwards on the left, downwards on the right, below the line to the next step: so no two lines meet.
        left = to_y < y
        edge, turn = (x, x - GAP / 2 + 2) if left else (x + wide, x + wide + GAP / 2 - 3)
        from_y, into = y + middle + (0 if left else 10), edge - 5 if left else edge + 5
        path = f"M{edge:g} {from_y:g} H{turn:g} V{to_y + middle:g} H{into:g}"
        tip = (edge, to_y + middle, "right" if left else "left")
    else:
        down = to_y > y
        start, end = (y + BOX_HEIGHT, to_y) if down else (y, to_y + BOX_HEIGHT)
        middle_x = x + wide / 2
        path = f"M{middle_x:g} {start:g} V{end - 5 if down else end + 5:g}"
        tip = (middle_x, end, "down" if down else "up")
    return f'<path class="{"wait" if dashed else "way"}" d="{path}"/>' + _tip(*tip)


def _tip(x: float, y: float, towards: str) -> str:
    corners = {
        "right": ((0, 0), (-8, -4), (-8, 4)),
        "left": ((0, 0), (8, -4), (8, 4)),
        "down": ((0, 0), (-4, -8), (4, -8)),
        "up": ((0, 0), (-4, 8), (4, 8)),
    }[towards]
    points = " ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in corners)
    return f'<polygon class="tip" points="{points}"/>'


def _station(station: Station, x: float, y: float, kind: str) -> list[str]:
    wide = COLUMN - GAP
    return [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide}" height="{BOX_HEIGHT}" rx="4"/>',
        _text(x + 12, y + 16, station.name, "small"),
        _text(x + 12, y + 31, f"{station.module.split('.')[-1]}.py", "file quiet"),
    ]


# ── SVG ──────────────────────────────────────────────────────────────────────


def _text(x: float, y: float, text: str, kind: str, anchor: str = "") -> str:
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{place}>{escape(text)}</text>'


def _document(height: float, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" role="img">'
    ground = f'<rect class="ground" x="0" y="0" width="{WIDTH}" height="{height:g}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""])


def drawings() -> dict[Path, str]:
    """Each drawing, by the file that holds it."""
    imports = Imports()
    return {DRAWINGS / "floors.svg": draw_floors(imports), DRAWINGS / "way-of-a-job.svg": draw_way(imports)}


if __name__ == "__main__":
    for file, drawing in drawings().items():
        file.write_text(drawing, encoding="utf-8")
