"""`python -m benchmarks`, which `make bench` runs: `headrace bench` with floors, throw-away servers and the HTTP server."""

from __future__ import annotations

import click

from benchmarks.groups import BESIDE
from benchmarks.http import run as http_run
from benchmarks.result import remarks
from benchmarks.stand import STANDS
from headrace.cli import bench
from headrace.cli.root import Answering
from headrace.errors import ConfigError


@click.command("benchmarks", cls=Answering)
@click.option(
    "--store", default="sqlite", show_default=True, help="sqlite, postgres, redis, memory (made for the run), or a URL."
)
@click.option("--http", is_flag=True, help="Measure the server on this store instead, beside a bare route.")
@bench.options
def main(
    store: str,
    http: bool,
    quick: bool,
    jobs: int | None,
    tenants: int | None,
    everyday: bool,
    observed: bool,
    workflows: bool,
    as_json: bool,
) -> None:
    """Measure a store beside its own raw floor: what the engine writes per second without a queue."""
    if http and (everyday or observed or workflows or tenants is not None):
        raise ConfigError(
            "--http, --everyday, --observed, --workflows and --tenants measure different things: give one of them"
        )
    if http:
        plan = http_run.plan(quick=quick, jobs=jobs)
        bench.show(
            store,
            lambda place, meter: http_run.measure(place, plan, meter),
            as_json=as_json,
            stands=STANDS,
            remark=remarks,
        )
        return
    kind = bench.chosen(
        quick=quick,
        jobs=jobs,
        tenants=tenants,
        everyday=everyday,
        observed=observed,
        workflows=workflows,
        beside=BESIDE,
    )
    bench.show(store, kind, as_json=as_json, stands=STANDS, remark=remarks)


if __name__ == "__main__":
    main.main(prog_name="make bench")
