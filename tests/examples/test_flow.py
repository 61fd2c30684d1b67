"""The examples of fair tenants and of a limit that finds its own rate: they end by themselves and show what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []  # everything was in a temporary folder
    return done.stdout


def test_tenants(tmp_path: Path) -> None:
    shown = run("tenants.py", tmp_path)
    found = re.findall(r"│ (\w+) +│ +([\d,]+) │ +([\d.]+) s │", shown)
    rows = {shop: (int(jobs.replace(",", "")), float(median)) for shop, jobs, median in found}
    assert {shop: jobs for shop, (jobs, _) in rows.items()} == {"acme": 3000, "globex": 600, "initech": 300}
    assert rows["globex"][1] < rows["acme"][1]
    assert rows["initech"][1] < rows["acme"][1]


def test_a_limit_finds_its_rate(tmp_path: Path) -> None:
    shown = run("rate_limited_api.py", tmp_path)
    assert "closed, then one at a time until one succeeds" in shown
    assert "220 requests got through" in shown
    refused = re.search(r"\((\d+)%\)", shown)
    assert refused is not None
    assert int(refused[1]) < 50
