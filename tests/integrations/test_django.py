"""Django: the backend for its tasks, its transactions, migrations and command, on the databases it may share with headrace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.kit import ROOT
from servers.postgres import PostgresServer
from servers.redis import RedisServer

CASES = Path(__file__).parent / "django_cases.py"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.timeout(900)
def test_cases(database: str, tmp_path: Path, valkey_server: RedisServer, request: pytest.FixtureRequest) -> None:
    server: PostgresServer | None = request.getfixturevalue("postgres_server") if database == "postgres" else None
    url = f"sqlite:///{tmp_path}/site.db" if server is None else server.create_database()
    valkey_server.command("FLUSHALL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(CASES)],
        cwd=ROOT,
        env={
            **kept,
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
            "DATABASE_URL": url,
            "ELSEWHERE_URL": valkey_server.url(),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if server is not None:
        server.drop_database(url)
