"""`python -m benchmarks.peers`: headrace beside Huey, SAQ, PgQueuer, BullMQ and graphile-worker, in one run."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from benchmarks.peers import report
from benchmarks.peers.contestants import PEERS, headrace, peer, raw
from benchmarks.peers.install import Installed, install
from benchmarks.peers.places import KINDS, Kind, opened
from benchmarks.peers.race import Plan, race

_USUAL = Plan()


@click.command("peers")
@click.option("--store", "stores", multiple=True, type=click.Choice(KINDS), help="Only these stores; may be repeated.")
@click.option("--only", multiple=True, help="Only these peers; may be repeated.")
@click.option("--rounds", default=_USUAL.rounds, show_default=True, help="Turns of each contestant.")
@click.option("--singles", default=_USUAL.singles, show_default=True, help="Single enqueues in a turn.")
@click.option("--no-workers", is_flag=True, help="Only single enqueues and imports.")
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
    no_workers: bool,
    quick: bool,
    own: tuple[str, ...],
    into: Path | None,
    json_file: Any,
) -> None:
    """Measure headrace and its peers on servers that the run starts, round by round in turns.

    The rows: one enqueue per call without a worker (beside one raw write); 500 jobs per second, one per call, from the
    start of the call to the start of the job; the same for single jobs that meet an idle worker; a backlog of jobs of
    100 KB, from the moment at which the worker sees it; the import of the package.
    """
    kinds = stores or KINDS
    names = {name for kind in kinds for name in PEERS[kind] if not only or name in only}
    plan = Plan(2, 50, 10, 50, large=20) if quick else Plan(rounds, singles, workers=not no_workers)
    with ExitStack() as stack:
        folder = into or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-peers-")))
        folder.mkdir(parents=True, exist_ok=True)
        done = install(folder.resolve(), {*names, "raw"})
        for name, why in done.missing.items():
            click.echo(f"{name} cannot be installed: {why}", err=True)
        labels = [each.partition("=")[::2] for each in own] or [("headrace", sys.executable)]
        interpreters = {label: Path(python).absolute() for label, python in labels}
        about: dict[str, Any] = {"load_before": os.getloadavg(), "missing": done.missing, "stores": {}}
        lines = [line for kind in kinds for line in _race(kind, interpreters, names, done, plan, about)]
        about["load_after"] = os.getloadavg()
    click.echo(f"\nload of the machine: {about['load_before'][0]:.1f} before, {about['load_after'][0]:.1f} after")
    if json_file is not None:
        json_file.write(report.as_json(lines, about) + "\n")


def _race(
    kind: Kind, interpreters: dict[str, Path], names: set[str], done: Installed, plan: Plan, about: dict[str, Any]
) -> list[report.Line]:
    contestants = [each for label, python in interpreters.items() for each in headrace(label, python)]
    contestants += [peer(name, done) for name in PEERS[kind] if name in names & done.versions.keys()]
    if "raw" in done.versions:
        contestants.append(raw(done))
    # What the caller's interpreter is told about modules and their compiled form is not meant for the others.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PEERS_MODULES"] = str(done.modules)
    with opened(kind) as place:
        click.echo(f"\n{kind} {place.version}: {place.durability}\n")
        samples = race([(each, place.fresh()) for each in contestants], plan, environment)
        about["stores"][kind] = {"version": place.version, "durability": place.durability}
    lines = [report.line(kind, each, done.versions.get(each.name, ""), samples[each.name]) for each in contestants]
    click.echo(report.table(lines))
    return lines


if __name__ == "__main__":
    main.main(prog_name="python -m benchmarks.peers")
