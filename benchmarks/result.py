"""Measurements that only a run from the repository makes, and what the table says of them."""

from __future__ import annotations

from headrace.bench.result import Measurement
from headrace.cli import bench


class EngineMeasurement(Measurement, kw_only=True):
    """A workload of `benchmarks.groups`."""

    unheld_per_s: float | None = None
    """`open_transaction`: the same load without the open transaction."""
    slowdown: float | None = None
    """`open_transaction`: unheld_per_s over jobs_per_s."""
    server_cpu_us_per_job: float | None = None
    """`usual_layout`: of the server, from enqueue to done."""
    bytes_per_waiting_job: float | None = None
    """`usual_layout`: of the server's memory."""
    usual_cpu_us_per_job: float | None = None
    """`usual_layout`: the same for that layout, whose jobs/s is floor_per_s."""
    usual_bytes_per_waiting_job: float | None = None


class HttpMeasurement(Measurement, kw_only=True):
    """A workload over HTTP."""

    http_cpu_us_per_job: float | None = None
    """Over HTTP: of the server process."""
    bare_cpu_us_per_job: float | None = None
    """`http_enqueue`: the same for the bare route, whose requests/s is floor_per_s."""
    idle_workers: int | None = None
    """`http_idle`: how many long polls were held; p50_ms and p99_ms are from enqueue to claim meanwhile."""
    rss_mib: float | None = None
    """`http_idle`: memory of the server process with them, and without."""
    rss_mib_alone: float | None = None
    cpu_percent: float | None = None
    """`http_idle`: of one core, used by the server process with them, and without."""
    cpu_percent_alone: float | None = None


def remarks(each: Measurement) -> str:
    """What only one workload has to say."""
    more: tuple[str, ...] = ()
    match each:
        case EngineMeasurement():
            more = (
                f"slowdown {each.slowdown:.2f}×" if each.slowdown is not None else "",
                _beside(each.server_cpu_us_per_job, each.usual_cpu_us_per_job, "µs server CPU"),
                _beside(each.bytes_per_waiting_job, each.usual_bytes_per_waiting_job, "B per waiting job"),
            )
        case HttpMeasurement():
            more = _over_http(each)
        case _:
            pass
    return ", ".join(part for part in (bench.remarks(each), *more) if part)


def _over_http(each: HttpMeasurement) -> tuple[str, ...]:
    bare = "" if each.bare_cpu_us_per_job is None else f" (bare: {each.bare_cpu_us_per_job:g})"
    return (
        "" if each.http_cpu_us_per_job is None else f"{each.http_cpu_us_per_job:g} µs CPU of the server per job{bare}",
        "" if each.idle_workers is None else f"{each.idle_workers:,} idle workers",
        "" if each.rss_mib is None else f"{each.rss_mib:g} MiB (without them {each.rss_mib_alone:g})",
        "" if each.cpu_percent is None else f"{each.cpu_percent:g} % CPU (without them {each.cpu_percent_alone:g})",
    )


def _beside(ours: float | None, usual: float | None, unit: str) -> str:
    return "" if ours is None or usual is None else f"{ours:g} {unit} (usual: {usual:g})"
