"""`python -m benchmarks.peers`: headrace beside Huey, SAQ, PgQueuer, BullMQ and graphile-worker, in one run."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.peers import report
from benchmarks.peers.contestants import PEERS, headrace, peer, raw
from benchmarks.peers.install import Installed, install
from benchmarks.peers.places import KINDS, Kind, opened
from benchmarks.peers.plan import Plan
from benchmarks.peers.race import race
from benchmarks.peers.rows import ROWS, Row

_USUAL = Plan()
_QUICK = Plan(2, 50, 10, 50, scripts=1, idle=0.5, busy=0.05, bytes=4_000_000)


_EPILOG = "\n\n".join(("Each row has a table of its own:", *(f"{name}: {row.says}." for name, row in ROWS.items())))


@click.command("peers", epilog=_EPILOG)
@click.option("--store", "stores", multiple=True, type=click.Choice(KINDS), help="Only these stores; may be repeated.")
@click.option("--only", multiple=True, help="Only these peers; may be repeated.")
@click.option("--rounds", default=_USUAL.rounds, show_default=True, help="Turns of each contestant.")
@click.option("--singles", default=_USUAL.singles, show_default=True, help="Single enqueues in a turn.")
@click.option("--row", "names", multiple=True, type=click.Choice(tuple(ROWS)), help="Only these rows; may be repeated.")
@click.option("--quick", is_flag=True, help="Two short rounds, to see whether everything runs.")
@click.option(
    "--headrace",
    "own",
    multiple=True,
    metavar="LABEL=PYTHON",
    help="An interpreter that has headrace; may be repeated, to compare two checkouts. Otherwise the one that runs this.",
)
@click.option(
    "--into", type=click.Path(path_type=Path), help="Install the peers here and keep them. Otherwise they are removed."
)
@click.option("--json", "json_file", type=click.File("w"), help="Also write all figures to this file.")
def main(
    stores: tuple[Kind, ...],
    only: tuple[str, ...],
    rounds: int,
    singles: int,
    names: tuple[str, ...],
    quick: bool,
    own: tuple[str, ...],
    into: Path | None,
    json_file: Any,
) -> None:
    """Measure headrace and its peers on servers that the run starts, round by round in turns."""
    kinds = stores or KINDS
    peers = {name for kind in kinds for name in PEERS[kind] if not only or name in only}
    rows = {name: row for name, row in ROWS.items() if not names or name in names}
    plan = _QUICK if quick else replace(_USUAL, rounds=rounds, singles=singles)
    with ExitStack() as stack:
        folder = into or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-peers-")))
        folder.mkdir(parents=True, exist_ok=True)
        done = install(folder.resolve(), {*peers, *(("raw",) if "single" in rows else ())})
        for name, why in done.missing.items():
            click.echo(f"{name} cannot be installed: {why}", err=True)
        labels = [each.partition("=")[::2] for each in own] or [("headrace", sys.executable)]
        interpreters = {label: Path(python).absolute() for label, python in labels}
        about: dict[str, Any] = {"load_before": os.getloadavg(), "missing": done.missing, "stores": {}}
        lines = [line for kind in kinds for line in _race(kind, interpreters, peers, done, rows, plan, about)]
        about["load_after"] = os.getloadavg()
    click.echo(f"\nload of the machine: {about['load_before'][0]:.1f} before, {about['load_after'][0]:.1f} after")
    if json_file is not None:
        json_file.write(report.as_json(lines, about) + "\n")


def _race(
    kind: Kind,
    interpreters: dict[str, Path],
    peers: set[str],
    done: Installed,
    rows: dict[str, Row],
    plan: Plan,
    about: dict[str, Any],
) -> list[report.Line]:
    contestants = [each for label, python in interpreters.items() for each in headrace(label, python)]
    contestants += [peer(name, done) for name in PEERS[kind] if name in peers & done.versions.keys()]
    if "raw" in done.versions:
        contestants.append(raw(done))
    # What the caller's interpreter is told about modules and their compiled form is not meant for the others.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PEERS_MODULES"] = str(done.modules)
    with opened(kind) as place:
        click.echo(f"\n{kind} {place.version}: {place.durability}\n")
        samples = race(contestants, place, list(rows.values()), plan, environment)
        about["stores"][kind] = {"version": place.version, "durability": place.durability}
    lines = [report.line(kind, each, done.versions.get(each.name, ""), samples[each.name]) for each in contestants]
    click.echo(report.tables(lines, rows))
    return lines


if __name__ == "__main__":
    main.main(prog_name="python -m benchmarks.peers")
