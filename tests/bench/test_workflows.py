"""`headrace bench --workflows`: every workload has its figures and its target. How good they are, no test asks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import floors
from benchmarks.__main__ import main
from headrace.bench.plan import QUICK, make
from headrace.bench.result import WORKFLOWS, Measurement
from headrace.bench.targets import TARGETS, judge
from headrace.bench.workflows import Workflows
from headrace.cli.root import root
from headrace.store import connect
from servers.postgres import PostgresServer
from servers.redis import RedisServer

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
ALONE = [name for name in WORKFLOWS if not name.startswith("bytes_")]
"""What the installed package measures."""


def measured(*args: str) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(main, ["--workflows", "--quick", "--jobs", "10", "--json", *args])
    assert result.exit_code == 0, result.output
    return {each["workload"]: each for each in json.loads(result.stdout)}


def test_sqlite_beside_its_floor() -> None:
    found = measured("--store", "sqlite")
    assert list(found) == list(WORKFLOWS)
    for name, each in found.items():
        assert each["target"]
        assert each["met"] in {True, False}, name
        # The opening has no base, and is compared with a time.
        assert (each["ratio"] is not None) == (name != "fanout_1m")
    for name in ("ordinary_together", "fanout_drain", "group_1m", "group_singles", "chains", "steps_100"):
        assert found[name]["jobs_per_s"] > 0
        assert found[name]["floor_per_s"] > 0
        assert 0 < found[name]["lower_ratio"] <= found[name]["ratio"] <= found[name]["upper_ratio"]
    for name in ("ordinary_pickup", "fanout_1m", "chain_1", "join", "step_1", "suspended_signal"):
        assert 0 < found[name]["p50_ms"] <= found[name]["p99_ms"]
    assert found["join"]["more_p50_ms"] is not None
    assert found["bytes_link"]["bytes_per_job"] > 0


def test_the_table_of_the_installed_command() -> None:
    result = CliRunner().invoke(root, ["bench", "--store", "memory", "--workflows", "--quick", "--jobs", "10"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["workload", *ALONE]
    steps = [line.split()[-1] for line in result.stderr.splitlines() if line.startswith("bench memory: ")]
    assert steps[:2] == ["warm-up", "ordinary"]
    assert steps[-1] == "suspended_100k"


def test_workflows_are_measured_alone() -> None:
    for command, args in ((main, ["--workflows", "--http"]), (root, ["bench", "--workflows", "--everyday"])):
        result = CliRunner().invoke(command, args)
        assert result.exit_code == 78
        assert "give one of them" in result.stderr


def test_each_workload_has_a_target_on_each_store() -> None:
    assert {store: list(targets) for store, targets in TARGETS.items()} == {
        store: list(WORKFLOWS) for store in ("sqlite", "postgres", "redis")
    }


@pytest.mark.parametrize(
    ("workload", "figures", "target", "met"),
    [
        ("group_singles", {"ratio": 0.85}, "≥ 0.85", True),
        ("group_singles", {"ratio": 0.84}, "≥ 0.85", False),
        ("chain_1", {"ratio": 1.6}, "≤ 1.5×", False),
        ("fanout_1m", {"p50_ms": 12.0}, "≤ 100 ms", True),
        ("join", {"more_p50_ms": 0.4, "more_p99_ms": 26.0}, "p50 ≤ + 1 ms, p99 ≤ + 25 ms", False),
        ("join", {"more_p50_ms": -0.1, "more_p99_ms": 2.0}, "p50 ≤ + 1 ms, p99 ≤ + 25 ms", True),
        ("steps_100", {}, "≥ 0.5", None),
    ],
)
def test_a_target_is_met_or_missed(workload: str, figures: dict[str, Any], target: str, met: bool | None) -> None:
    measurement = Measurement(store="postgres", workload=workload, **figures)
    judge(measurement)
    assert (measurement.target, measurement.met) == (target, met)


def test_the_memory_store_has_no_targets() -> None:
    measurement = Measurement(store="memory", workload="chains", ratio=0.1)
    judge(measurement)
    assert (measurement.target, measurement.met) == (None, None)


def test_a_run_begins_no_round_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    workflows = Workflows(QUICK, lambda *_: None, floor=False)
    assert workflows.goes_on
    monkeypatch.setattr(workflows, "_rounds", QUICK.workflow_rounds - 1)
    assert workflows.goes_on
    monkeypatch.setattr(workflows, "_until", 0.0)
    assert not workflows.goes_on


def test_a_scaled_run_keeps_whole_chains() -> None:
    assert make(quick=False, jobs=10).chains == 1
    assert make(quick=False, jobs=None).blocked == 1_000_000


async def test_the_bytes_of_a_store(postgres_server: PostgresServer, redis_server: RedisServer) -> None:
    for engine, url in (("postgres", postgres_server.create_database()), ("redis", redis_server.url())):
        store = connect(url)
        await store.migrate()
        await store.close()
        floor = floors.of(engine, url)
        assert floor is not None
        assert await floor.stored() > 0
