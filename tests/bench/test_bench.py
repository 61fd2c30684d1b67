"""`headrace bench` and `make bench`: every workload is measured on every store. How fast it is, no test asks."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import floors, pages
from benchmarks.__main__ import main
from benchmarks.groups import USUAL
from headrace.bench.crew import Crew
from headrace.bench.floor import NOTHING
from headrace.bench.fork_server import BenchFailed
from headrace.bench.load import Load, Traffic
from headrace.bench.observed import Observed
from headrace.bench.plan import FULL, QUICK, make
from headrace.bench.result import EVERYDAY, FLOW, OBSERVED, WORKLOADS, percentile, quartiles
from headrace.bench.roles import Spec
from headrace.bench.stand import _file_system, open_stand, prepare, shown
from headrace.bench.workloads import Workloads
from headrace.cli.bench import bar
from headrace.cli.root import root

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
ALONE = {"one_shot", "idle_chatter"}
"""Scripts and the calls of an idle worker need a store that is not this process's own."""
KEYS = {
    *("store", "workload", "jobs_per_s", "floor_per_s", "ratio"),
    *("p50_ms", "p99_ms", "wal_bytes_per_job"),
}


def bench(*args: str) -> list[dict[str, Any]]:
    """What `make bench` finds."""
    result = CliRunner().invoke(main, [*args, "--quick", "--jobs", "200", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def installed(*args: str) -> list[dict[str, Any]]:
    """What `headrace bench` finds, as users install it."""
    result = CliRunner().invoke(root, ["bench", *args, "--quick", "--jobs", "50", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def check(found: list[dict[str, Any]], store: str, *, floor: bool, more: tuple[str, ...] = ()) -> None:
    engine = ("open_transaction",) if floor else ()
    assert [each["workload"] for each in found] == [*WORKLOADS, *engine, *more]
    by_name = {each["workload"]: each for each in found}
    for each in found:
        assert set(each) >= KEYS
        assert each["store"] == store
        assert (each["jobs_per_s"] is not None) == (each["workload"] != "pickup")
        assert (each["floor_per_s"] is not None) == (floor and each["workload"] != "pickup")
        assert (each["ratio"] is not None) == (each["floor_per_s"] is not None)
    for name in ("enqueue_single", "pickup", "backlog_1m"):
        assert 0 < by_name[name]["p50_ms"] <= by_name[name]["p99_ms"]
    assert by_name["backlog_1m"]["waiting"] == 2000
    assert by_name["backlog_1m"]["claim_p99_ms_at_1k"] > 0
    if floor:
        assert by_name["open_transaction"]["slowdown"] > 0


def test_observed() -> None:
    measurements = {measurement["workload"]: measurement for measurement in bench("--observed")}
    assert list(measurements) == list(OBSERVED)
    for name, measurement in measurements.items():
        assert measurement["jobs_per_s"] > 0
        assert measurement["cpu_us_per_job"] > 0
        if name != "unobserved":
            # History is always kept, so traces come on top of it.
            assert measurement["beside"] == ("rollups" if name.startswith("traced") else "unobserved")
            assert 0 < measurement["lower_ratio"] <= measurement["ratio"] <= measurement["upper_ratio"]
            assert measurement["cpu_ratio"] > 0
    # So short a run may end between two answers. The run itself fails if a browser got none before it.
    figures = {"answers_per_s", "events_per_s", "server_cpu", "server_cpu_at_rest"}
    assert {name for name in figures if measurements["browsers"][name] is not None} == figures
    assert {name for name in figures if measurements["rollups"].get(name) is not None} == set()


def test_the_installed_package_measures_browsers_and_no_traces() -> None:
    result = CliRunner().invoke(root, ["bench", "--observed", "--quick", "--jobs", "50", "--json"])
    assert result.exit_code == 0, result.output
    names = ["unobserved", "rollups", "browsers"]
    assert [measurement["workload"] for measurement in json.loads(result.stdout)] == names
    # A run that takes minutes says what it does, also where stderr is a file.
    steps = [f"bench sqlite: {done}/3 {name}" for done, name in enumerate(names)]
    assert [line for line in result.stderr.splitlines() if line.startswith("bench ")] == [
        "bench sqlite: 0/3 warm-up",
        *steps,
    ]


def test_a_run_begins_no_round_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make(quick=True, jobs=None)
    observed = Observed(plan, lambda *_: None, traces=False)
    assert observed.goes_on
    monkeypatch.setattr(observed, "_rounds", plan.rounds - 1)
    assert observed.goes_on
    monkeypatch.setattr(observed, "_until", 0.0)
    assert not observed.goes_on
    # Without a single round there would be nothing to show.
    monkeypatch.setattr(observed, "_rounds", 0)
    assert observed.goes_on


def test_quartiles() -> None:
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    assert quartiles([0.9]) == (0.9, 0.9)


def test_a_store_of_one_process_cannot_be_observed() -> None:
    result = CliRunner().invoke(root, ["bench", "--store", "memory", "--observed", "--jobs", "50"])
    assert result.exit_code == 78
    assert "--observed measures a server in a process of its own" in result.stderr


def test_the_calls_of_pages_over_a_long_history() -> None:
    result = CliRunner().invoke(pages.main, ["--jobs", "20000", "--days", "0", "--rounds", "1", "--json"])
    # Whether a call took longer than it may, this test does not ask.
    assert result.exit_code in {0, pages.SLOW}, result.output
    calls = json.loads(result.stdout)
    assert {call["jobs"] for call in calls} == {2000, 20000}
    assert all(0 < call["p50_ms"] <= call["most_ms"] for call in calls)
    assert {"/v1/queues", "/v1/dead", "/v1/jobs?state=dead&limit=50"} < {call["call"] for call in calls}


def test_sqlite() -> None:
    check(bench("--store", "sqlite"), "sqlite", floor=True)


def test_postgres() -> None:
    found = bench("--store", "postgres")
    check(found, "postgres", floor=True)
    assert next(each for each in found if each["workload"] == "together")["wal_bytes_per_job"] > 0


def test_redis_beside_a_hash_per_job() -> None:
    found = bench("--store", "redis")
    check(found, "redis", floor=True, more=(USUAL,))
    for figure in ("server_cpu_us_per_job", "bytes_per_waiting_job"):
        assert found[-1][figure] > 0
    for figure in ("usual_cpu_us_per_job", "usual_bytes_per_waiting_job"):
        assert found[-1][figure] > 0


def test_memory_has_no_floor() -> None:
    check(bench("--store", "memory"), "memory", floor=False)


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_everyday(store: str) -> None:
    found = {each["workload"]: each for each in bench("--store", store, "--everyday")}
    assert list(found) == [name for name in EVERYDAY if store != "memory" or name not in ALONE]
    for name in ("enqueue_sync", "async_task", "sync_task", "fail_once", "payload_10k", "payload_100k"):
        assert found[name]["jobs_per_s"] > 0
    for name in ("sync_task", "fail_once"):
        assert found[name]["beside"] == "async_task"
        assert found[name]["ratio"] > 0
    for name in ("payload_10k", "payload_100k"):
        assert found[name]["bulk_per_s"] > 0
    assert 0 < found["trickle_500"]["p50_ms"] <= found["trickle_500"]["p99_ms"]
    if store != "memory":
        assert found["one_shot"]["p50_ms"] is not None
        assert found["one_shot"]["exit_p50_ms"] > 0
        assert (found["idle_chatter"]["server_calls_per_s"] is None) == (store == "sqlite")


def test_one_kind_of_figures_at_a_time() -> None:
    for command, args in ((main, ["--everyday", "--http"]), (root, ["bench", "--everyday", "--tenants", "5"])):
        result = CliRunner().invoke(command, args)
        assert result.exit_code == 78
        assert "give one of them" in result.stderr


def test_the_installed_command_measures_the_store_alone() -> None:
    found = installed("--store", "memory://")
    assert [each["workload"] for each in found] == list(WORKLOADS)
    assert all(each["floor_per_s"] is None for each in found)
    assert all(each["jobs_per_s"] > 0 for each in found if each["workload"] != "pickup")


async def test_the_installed_member_knows_no_floor(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    await prepare(url)
    crew = Crew("sqlite", shared=True, member=NOTHING.member)
    workloads = Workloads(crew, url, make(quick=True, jobs=10), NOTHING.floor("sqlite", url))
    assert await workloads.floor_together() == []
    assert await workloads.fill(workloads.queue("some")) > 0
    with pytest.raises(BenchFailed, match=r"the floor_jobs process failed: .*floor_jobs"):
        await workloads.all(workloads.spec("floor_jobs", workloads.queue("floor"), 10))
    await crew.close()


async def test_a_module_that_cannot_start_members_says_why() -> None:
    crew = Crew("sqlite", shared=True, member="headrace.bench.no_such_module")
    spec = Spec(role="bulk", url="sqlite:///x.db", engine="sqlite", queue="q")
    with pytest.raises(BenchFailed, match="no_such_module"):
        await crew.all([spec], within=60)
    await crew.close()


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_members_end_with_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    await prepare(url)
    crew = Crew("sqlite", shared=True, member=NOTHING.member)
    forks = crew._forks
    with (tmp_path / "errors").open("wb") as errors:
        left = await forks.start(errors.name)
        ended = await forks.start(errors.name)
    assert len({left.pid, ended.pid, os.getpid()}) == 3
    await forks.end(ended)
    assert (lives(ended.pid), lives(left.pid)) == (False, True)
    await crew.close()
    assert not lives(left.pid)
    left.orders.close()


def test_the_installed_command_measures_everyday_work() -> None:
    """Its failed jobs belong to the workload, so no log line of a worker in this process reaches the user."""
    args = ["bench", "--store", "memory", "--everyday", "--quick", "--jobs", "50", "--json"]
    done = subprocess.run([sys.executable, "-m", "headrace.cli", *args], capture_output=True, text=True, check=True)
    assert [each["workload"] for each in json.loads(done.stdout)] == [each for each in EVERYDAY if each not in ALONE]
    assert [line for line in done.stderr.splitlines() if not line.startswith("bench memory: ")] == []


def test_the_installed_command_starts_no_servers() -> None:
    result = CliRunner().invoke(root, ["bench", "--store", "postgres"])
    assert result.exit_code == 78
    assert "use sqlite, memory, or the URL of an empty store" in result.stderr


def test_files_in_memory_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_stand(f"sqlite:///{tmp_path / 'mine.db'}") as stand:
        monkeypatch.setattr("headrace.bench.stand._file_system", lambda folder: {tmp_path: "tmpfs"}[folder])
        assert stand.in_memory
        monkeypatch.setattr("headrace.bench.stand._file_system", lambda folder: {tmp_path: "ext4"}[folder])
        assert not stand.in_memory
    with open_stand("memory") as stand:
        assert not stand.in_memory


def test_the_file_system_of_a_folder() -> None:
    assert _file_system(Path("/proc/self")) == "proc"
    assert _file_system(Path("/")) not in {"", "proc"}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_tenants_and_limits(store: str) -> None:
    found = bench("--store", store, "--tenants", "20")
    assert [each["workload"] for each in found] == list(FLOW)
    beside = [None, "fifo", "fifo", "fifo", "tenants_uniform", None, "fifo_apart", "fifo_apart"]
    assert [each["beside"] for each in found] == beside
    assert all(each["jobs_per_s"] > 0 for each in found)
    assert all(each["ratio"] > 0 for each in found if each["beside"])


@pytest.mark.parametrize(
    ("traffic", "first", "others"), [("skewed", 900, 100), ("uniform", 10, 990), ("keyed", 10, 990)]
)
def test_whose_jobs_come(traffic: Traffic, first: int, others: int) -> None:
    jobs = [call.job for call in Load("memory://", "q").jobs(traffic, 20_000, 100)]
    got = Counter(job.lane.tenant for job in jobs)
    assert len(got) == 100
    assert abs(got["tenant-0"] / 20_000 - first / 1000) < 0.02
    assert abs(sum(got[f"tenant-{n}"] for n in range(1, 100)) / 20_000 - others / 1000) < 0.02
    assert {bool(job.lane.limits) for job in jobs} == {traffic == "keyed"}


def test_a_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    with open_stand(url) as stand:
        assert (stand.engine, stand.fresh(), stand.shared) == ("sqlite", url, True)
    with open_stand("memory://") as stand:
        assert (stand.engine, stand.fresh(), stand.shared) == ("memory", "memory://", False)
    assert "hunter2" not in shown("postgresql://u:hunter2@host/db")


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    assert CliRunner().invoke(root, ["migrate", "--url", url]).exit_code == 0
    assert CliRunner().invoke(root, ["enqueue", "a.b", "--raw", "--url", url]).exit_code == 0
    result = CliRunner().invoke(root, ["bench", "--store", url, "--quick", "--jobs", "10"])
    assert result.exit_code == 78
    assert "never on a live one" in result.stderr


@pytest.mark.parametrize("store", ["kafka", "sqlit", "", "mysql://x/y", "sqlite://"])
def test_a_bad_store(store: str) -> None:
    result = CliRunner().invoke(root, ["bench", "--store", store])
    assert result.exit_code == 78
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_the_table() -> None:
    result = CliRunner().invoke(root, ["bench", "--store", "memory", "--quick", "--jobs", "50"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["workload", *WORKLOADS]
    assert re.split(r"\s{2,}", lines[0].strip()) == ["workload", "jobs", "jobs/s", "p50 ms", "p99 ms", "remarks"]


def test_plans() -> None:
    assert FULL.backlog == 1_000_000
    assert FULL.held == 500_000
    assert make(quick=True, jobs=None) == QUICK
    assert make(quick=False, jobs=10).jobs == 10


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (50.0, 99.0, None)


def test_bars() -> None:
    assert (bar(0.5), bar(2.0), bar(None)) == ("█" * 10 + "░" * 10, "█" * 20, "")


async def test_the_floor_of_sqlite_writes_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "floor.db"
    floor = floors.of("sqlite", f"sqlite:///{file}")
    assert floor is not None
    await floor.prepare()
    async with floor.connection() as rows:
        await rows.jobs(25, 10)
        await rows.done(7, 3)
    with sqlite3.connect(file) as connection:
        jobs = connection.execute("select count(*) from headrace_bench_job").fetchone()[0]
        ended = connection.execute("select lo, hi from headrace_bench_done order by lo").fetchall()
    connection.close()
    assert (jobs, ended) == (25, [(1, 3), (4, 6), (7, 7)])
    await floor.drop()
