"""`headrace bench`: measure a store; the engine is headrace.bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.output import console, emit, on_terminal, progress, table
from headrace.cli.target import json_option
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.result import Measurement

_HEADERS = ("workload", "jobs", "jobs/s", "floor/s", "ratio", "", "p50 ms", "p99 ms", "WAL B/job", "remarks")
_BAR = 20


@click.command()
@click.option(
    "--store", default="sqlite", show_default=True, help="sqlite, postgres, redis, memory (made for the run), or a URL."
)
@click.option("--quick", is_flag=True, help="Smaller counts, for a run of about a minute.")
@click.option("--jobs", type=click.IntRange(1, 10_000_000), help="Scale everything to so many jobs.")
@click.option(
    "--tenants", type=click.IntRange(2, 100_000), help="Measure what so many tenants, and limits, cost instead."
)
@click.option(
    "--everyday", is_flag=True, help="Measure sync code, large payloads, a trickle, scripts and an idle worker instead."
)
@click.option("--http", is_flag=True, help="Measure the server on this store instead, beside a bare route.")
@json_option
def command(
    store: str, quick: bool, jobs: int | None, tenants: int | None, everyday: bool, http: bool, as_json: bool
) -> None:
    """Measure a store beside its own raw floor: what the engine writes per second without a queue."""
    from headrace.bench import plan, run, stand
    from headrace.bench.http import run as http_run
    from headrace.runtime.event_loop import run as run_loop

    if http + everyday + (tenants is not None) > 1:
        raise ConfigError("--http, --everyday and --tenants measure different things: give one of them")
    with progress(f"bench {stand.shown(store)}") as meter, stand.open_stand(store) as place:
        much = plan.make(quick=quick, jobs=jobs)
        if http:
            whole = http_run.measure(place, http_run.plan(quick=quick, jobs=jobs), meter)
        elif everyday:
            whole = run.measure_everyday(place, much, meter)
        elif tenants is not None:
            whole = run.measure_flow(place, much, tenants, meter)
        else:
            whole = run.measure(place, much, meter)
        found = run_loop(whole)
        in_memory = place.in_memory
    if in_memory:
        click.echo("the store's files lie in memory (tmpfs): commits cost nothing here, set TMPDIR to a disk", err=True)
    if as_json:
        emit(found)
    else:
        _print(found)


def _print(found: list[Measurement]) -> None:
    rows = [
        (
            each.workload,
            f"{each.jobs:,}",
            _rate(each.jobs_per_s),
            _rate(each.floor_per_s),
            "" if each.ratio is None else f"{each.ratio:.2f}",
            bar(each.ratio),
            _ms(each.p50_ms),
            _ms(each.p99_ms),
            "" if each.wal_bytes_per_job is None else f"{each.wal_bytes_per_job:,.0f}",
            remarks(each),
        )
        for each in found
    ]
    table(_HEADERS, rows, right=(1, 2, 3, 4, 6, 7, 8))
    if on_terminal() and not any(each.beside for each in found):
        console().print("ratio: jobs/s over the floor, which is one job row and one done row per job without a queue")


def bar(ratio: float | None) -> str:
    """The share of the floor that is reached."""
    if ratio is None:
        return ""
    filled = min(_BAR, round(ratio * _BAR))
    return "█" * filled + "░" * (_BAR - filled)


def remarks(each: Measurement) -> str:
    """The figures that only some workloads have."""
    parts = [
        f"beside {each.beside}" if each.beside is not None else "",
        f"{each.waiting:,} waiting" if each.waiting is not None else "",
        f"claim p99 {each.claim_p99_ms_at_1k} ms at 1k" if each.claim_p99_ms_at_1k is not None else "",
        f"slowdown {each.slowdown:.2f}×" if each.slowdown is not None else "",
        f"floor p50 {each.floor_p50_ms} ms" if each.floor_p50_ms is not None else "",
        _beside(each.server_cpu_us_per_job, each.usual_cpu_us_per_job, "µs server CPU"),
        _beside(each.bytes_per_waiting_job, each.usual_bytes_per_waiting_job, "B per waiting job"),
        f"enqueued {each.bulk_per_s:,.0f}/s" if each.bulk_per_s is not None else "",
        f"process ends {each.exit_p50_ms} ms after the commit" if each.exit_p50_ms is not None else "",
        f"{each.server_calls_per_s:g} server calls/s" if each.server_calls_per_s is not None else "",
        *_over_http(each),
    ]
    return ", ".join(part for part in parts if part)


def _over_http(each: Measurement) -> tuple[str, ...]:
    bare = "" if each.bare_cpu_us_per_job is None else f" (bare: {each.bare_cpu_us_per_job:g})"
    return (
        "" if each.http_cpu_us_per_job is None else f"{each.http_cpu_us_per_job:g} µs CPU of the server per job{bare}",
        "" if each.idle_workers is None else f"{each.idle_workers:,} idle workers",
        "" if each.rss_mib is None else f"{each.rss_mib:g} MiB (without them {each.rss_mib_alone:g})",
        "" if each.cpu_percent is None else f"{each.cpu_percent:g} % CPU (without them {each.cpu_percent_alone:g})",
    )


def _beside(ours: float | None, usual: float | None, unit: str) -> str:
    return "" if ours is None or usual is None else f"{ours:g} {unit} (usual: {usual:g})"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
