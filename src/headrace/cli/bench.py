"""`headrace bench`: measure a store; the engine is headrace.bench."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import console, emit, on_terminal, progress, table
from headrace.cli.target import json_option
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.floor import Beside
    from headrace.bench.result import Measurement
    from headrace.bench.run import Progress
    from headrace.bench.stand import Stand, Stands

    Kind = Callable[[Stand, Progress], Coroutine[Any, Any, list[Measurement]]]
    """One kind of run."""

_HEADERS = ("workload", "jobs", "jobs/s", "floor/s", "ratio", "", "p50 ms", "p99 ms", "WAL B/job", "target", "remarks")
_RIGHT = ("jobs", "jobs/s", "floor/s", "ratio", "p50 ms", "p99 ms", "WAL B/job")
_BAR = 20


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `headrace bench` and `make bench` share."""
    for option in reversed(
        (
            click.option("--quick", is_flag=True, help="Smaller counts, for a run of about a minute."),
            click.option("--jobs", type=click.IntRange(1, 10_000_000), help="Scale everything to so many jobs."),
            click.option(
                "--tenants",
                type=click.IntRange(2, 100_000),
                help="Measure what so many tenants, and limits, cost instead.",
            ),
            click.option(
                "--everyday",
                is_flag=True,
                help="Measure sync code, large payloads, a trickle, scripts and an idle worker instead.",
            ),
            click.option(
                "--observed",
                is_flag=True,
                help="Measure what history, a server and ten browsers that watch it cost instead.",
            ),
            click.option(
                "--workflows",
                is_flag=True,
                help="Measure what groups, chains, steps and suspended jobs cost instead, beside their targets.",
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@click.option(
    "--store",
    default="sqlite",
    show_default=True,
    help="sqlite or memory (made for the run), or the URL of an empty store.",
)
@options
def command(
    store: str,
    quick: bool,
    jobs: int | None,
    tenants: int | None,
    everyday: bool,
    observed: bool,
    workflows: bool,
    as_json: bool,
) -> None:
    """Measure a store: how fast it takes, hands out and settles jobs on this machine."""
    kind = chosen(quick=quick, jobs=jobs, tenants=tenants, everyday=everyday, observed=observed, workflows=workflows)
    show(store, kind, as_json=as_json)


def chosen(
    *,
    quick: bool,
    jobs: int | None,
    tenants: int | None,
    everyday: bool,
    observed: bool,
    workflows: bool,
    beside: Beside | None = None,
) -> Kind:
    """The run that the options ask for."""
    from headrace.bench import floor, plan, run

    much, more = plan.make(quick=quick, jobs=jobs), beside or floor.NOTHING
    if everyday + observed + workflows + (tenants is not None) > 1:
        raise ConfigError(
            "--everyday, --observed, --workflows and --tenants measure different things: give one of them"
        )
    if workflows:
        return lambda place, meter: run.measure_workflows(place, much, meter, more)
    if observed:
        return lambda place, meter: run.measure_observed(place, much, meter, more)
    if everyday:
        return lambda place, meter: run.measure_everyday(place, much, meter, more)
    if tenants is not None:
        return lambda place, meter: run.measure_flow(place, much, tenants, meter, more)
    return lambda place, meter: run.measure(place, much, meter, more)


def show(
    store: str,
    kind: Kind,
    *,
    as_json: bool,
    stands: Stands | None = None,
    remark: Callable[[Measurement], str] | None = None,
) -> None:
    """Run it, and print what it found. `said`: the remarks of a measurement."""
    from headrace.bench import stand
    from headrace.runtime.event_loop import run as run_loop

    with (
        progress(f"bench {stand.shown(store)}", lines=True) as meter,
        stand.open_stand(store, stands or stand.STANDS) as place,
    ):
        measurements = run_loop(kind(place, meter))
        in_memory = place.in_memory
    if in_memory:
        click.echo("the store's files lie in memory (tmpfs): commits cost nothing here, set TMPDIR to a disk", err=True)
    if as_json:
        emit(measurements)
    else:
        _print(measurements, remark or remarks)


def _print(measurements: list[Measurement], remark: Callable[[Measurement], str]) -> None:
    rows = [
        (
            measurement.workload,
            f"{measurement.jobs:,}",
            _rate(measurement.jobs_per_s),
            _rate(measurement.floor_per_s),
            "" if measurement.ratio is None else f"{measurement.ratio:.2f}",
            "" if measurement.target is not None else bar(measurement.ratio),
            _ms(measurement.p50_ms),
            _ms(measurement.p99_ms),
            "" if measurement.wal_bytes_per_job is None else f"{measurement.wal_bytes_per_job:,.0f}",
            _target(measurement),
            remark(measurement),
        )
        for measurement in measurements
    ]
    # A run without a floor has nothing to say in some columns.
    filled = [place for place in range(len(_HEADERS)) if any(row[place] for row in rows)]
    headers = [_HEADERS[place] for place in filled]
    right = [place for place, header in enumerate(headers) if header in _RIGHT]
    table(
        headers,
        [[row[place] for place in filled] for row in rows],
        right=right,
        wrap={"remarks": 24},
        drop=("", "jobs", "WAL B/job"),
    )
    if (
        on_terminal()
        and not any(measurement.beside for measurement in measurements)
        and any(measurement.ratio for measurement in measurements)
    ):
        console().print("ratio: jobs/s over the floor, which is one job row and one done row per job without a queue")


def bar(ratio: float | None) -> str:
    """The share of the floor that is reached."""
    if ratio is None:
        return ""
    filled = min(_BAR, round(ratio * _BAR))
    return "█" * filled + "░" * (_BAR - filled)


def remarks(measurement: Measurement) -> str:
    """The figures that only some workloads have."""
    parts = [
        _beside(measurement),
        f"{measurement.waiting:,} waiting" if measurement.waiting is not None else "",
        f"claim p99 {measurement.claim_p99_ms_at_1k} ms at 1k" if measurement.claim_p99_ms_at_1k is not None else "",
        f"{measurement.beside or 'floor'} p50 {measurement.floor_p50_ms} ms"
        if measurement.floor_p50_ms is not None
        else "",
        _more(measurement),
        f"{measurement.bytes_per_job:g} B" if measurement.bytes_per_job is not None else "",
        f"{measurement.beside} {measurement.floor_bytes:g} B" if measurement.floor_bytes is not None else "",
        f"enqueued {measurement.bulk_per_s:,.0f}/s" if measurement.bulk_per_s is not None else "",
        f"process ends {measurement.exit_p50_ms} ms after the commit" if measurement.exit_p50_ms is not None else "",
        _spread(measurement),
        _watched(measurement),
        f"{measurement.server_calls_per_s:g} server calls/s" if measurement.server_calls_per_s is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _spread(measurement: Measurement) -> str:
    low, high = measurement.lower_ratio, measurement.upper_ratio
    spread = "" if low is None or high is None else f"quartiles {low:.2f} to {high:.2f}"
    if measurement.cpu_us_per_job is None:
        return spread
    cpu = f"{measurement.cpu_us_per_job:g} µs CPU per job"
    if not spread or measurement.cpu_ratio is None:
        return cpu
    return f"{spread}, {cpu} ({measurement.cpu_ratio:.2f})"


def _beside(measurement: Measurement) -> str:
    # Another remark has the name already.
    named = measurement.floor_p50_ms is not None or measurement.floor_bytes is not None
    return "" if measurement.beside is None or named else f"beside {measurement.beside}"


def _more(measurement: Measurement) -> str:
    p50, p99 = measurement.more_p50_ms, measurement.more_p99_ms
    return "" if p50 is None or p99 is None else f"p50 {p50:+.2f} ms, p99 {p99:+.2f} ms"


def _target(measurement: Measurement) -> str:
    if measurement.target is None:
        return ""
    answer = {True: "met", False: "missed", None: "not measured"}[measurement.met]
    return f"{measurement.target}: {answer}"


def _watched(measurement: Measurement) -> str:
    answers, events = measurement.answers_per_s, measurement.events_per_s
    cpu, rest = measurement.server_cpu, measurement.server_cpu_at_rest
    if answers is None or events is None or cpu is None or rest is None:
        return ""
    return f"{answers:.0f} answers/s, {events:,.0f} events/s, server {cpu:.1%} of a core, {rest:.1%} at rest"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
