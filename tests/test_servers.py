"""A test run that is killed leaves no server behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

START = """
import sys
from servers.redis import RedisServer
from servers.postgres import PostgresServer
server = PostgresServer.start() if sys.argv[1] == "postgres" else RedisServer.start(sys.argv[1])
print(server.pid, server._home, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["postgres", "redis", "valkey"])
def test_a_killed_run_leaves_no_server(kind: str):
    run = subprocess.Popen(
        [sys.executable, "-c", START, kind],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    pid, home = run.stdout.readline().split()
    assert Path(f"/proc/{pid}").exists()
    run.kill()
    run.communicate()
    while Path(f"/proc/{pid}").exists() or Path(home).exists():
        time.sleep(0.05)
