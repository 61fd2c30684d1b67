"""Bad input: one line that says what to do, the right exit code, and no secret in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.shell import Shell
from servers.postgres import PostgresServer


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("shop.sub:app", "shop"),
        ("shop:nothing", "shop has no 'nothing'"),
        ("shop:other", "did you mean shop:app?"),
        ("empty", "empty has no Headrace()"),
        ("two", "write two:first or two:second"),
        ("shop:", "write package.module:app"),
        ("../shop.py:app", "below the current folder"),
        ("broken:app", "RuntimeError: out of order"),
        ("bad:app", "SyntaxError"),
        ("needs:app", "no_such_package"),
    ],
)
def test_an_app_that_cannot_be_had(shell: Shell, app: str, says: str) -> None:
    (shell.folder / "broken.py").write_text("raise RuntimeError('out of order')\n")
    (shell.folder / "bad.py").write_text("def\n")
    (shell.folder / "needs.py").write_text("import no_such_package\n")
    (shell.folder / "empty.py").write_text("from headrace import Headrace\n")
    (shell.folder / "two.py").write_text("from headrace import Headrace\nfirst, second = Headrace(), Headrace()\n")
    assert says in shell.error("jobs", "list", "--app", app, code=78)


def test_an_app_by_file_name(shell: Shell) -> None:
    assert shell.json("jobs", "list", "--app", "shop.py:app") == {"items": [], "next": None}


@pytest.mark.parametrize("app", ["shop", "shop.py"])
def test_the_only_app_of_a_module_needs_no_name(shell: Shell, app: str) -> None:
    assert shell.json("enqueue", "shop.charge", "7", '"acme"', "--app", app)["id"]
    shown = shell.json("doctor", "--app", app)
    assert [each["value"] for each in shown["settings"] if each["name"] == "app"] == ["shop:app"]


@pytest.mark.parametrize("url", ["nope", "mysql://host/db", "sqlite://"])
def test_a_bad_url(shell: Shell, url: str) -> None:
    assert shell.error("stats", "--url", url, code=78, url=False)


def test_a_store_by_either_name(shell: Shell) -> None:
    shell.put(2)
    for flag in ("--store", "--url"):
        assert len(shell.json("jobs", "list", flag, shell.url, url=False)["items"]) == 2


@pytest.mark.parametrize("userinfo", ["hr_abc_SeCrEt", "me:hr_abc_SeCrEt"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_is_not_there_and_a_token_that_is_not_shown(shell: Shell, scheme: str, userinfo: str) -> None:
    url = f"{scheme}://{userinfo}@127.0.0.1:1"
    said = shell.error("stats", "--store", url, code=1, url=False)
    assert f"{scheme}://127.0.0.1:1 cannot be reached" in said
    assert "SeCrEt" not in said
    shown = shell("doctor", "--app", "shop:app", "--store", url, url=False, code=1)
    assert "SeCrEt" not in shown.output


def test_a_missing_file_is_not_made_by_looking(shell: Shell, tmp_path: Path) -> None:
    missing = tmp_path / "typo.db"
    assert "headrace migrate" in shell.error("jobs", "list", "--url", f"sqlite:///{missing}", code=78, url=False)
    assert not missing.exists()


def test_a_bad_setting_names_its_source(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LEASE", "soon")
    assert "HEADRACE_LEASE" in shell.error("stats", code=78)


def test_a_wrong_password_is_never_printed(shell: Shell, postgres_server: PostgresServer) -> None:
    url = f"postgresql://headrace:hunter2secret@127.0.0.1:{postgres_server.port}/postgres"
    for command in (("stats",), ("doctor",), ("migrate",), ("bench", "--store", url)):
        given = command if command[0] == "bench" else (*command, "--url", url)
        result = shell(*given, code=None, url=False)
        assert result.exit_code != 0
        assert "hunter2secret" not in result.output
        assert "password" in result.output


def test_a_server_that_is_not_there(shell: Shell) -> None:
    error = shell.error("stats", "--url", "postgresql://u:hunter2secret@127.0.0.1:1/db", code=1, url=False)
    assert "hunter2secret" not in error


@contextmanager
def powerless() -> Generator[None]:
    """Run as an unprivileged user for a moment, because root may write to everything."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_read_only_file(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("enqueue", "shop.charge", "1", "--raw")  # imports everything while it may still be read
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "jobs.db"
        shutil.copy(shell.url.removeprefix("sqlite:///"), file)
        file.chmod(0o444)
        folder.chmod(0o555)
        monkeypatch.chdir("/")
        with powerless():
            error = shell.error(
                "enqueue", "shop.charge", "1", "--raw", "--url", f"sqlite:///{file}", code=78, url=False
            )
        folder.chmod(0o755)
    assert str(folder) in error


@pytest.mark.parametrize("name", ["$(touch x)", "`id`", "A", "a b", "", 'x"; DROP TABLE jobs;--'])
def test_s17_s26_a_bad_queue_name(shell: Shell, name: str) -> None:
    assert "queue" in shell.error("jobs", "list", "--queue", name, code=2)
    assert "queue" in shell.error("queues", "pause", name, code=2)
    assert not (shell.folder / "x").exists()


@pytest.mark.parametrize("id", ["1 OR 1=1", "x" * 10_000, "\x00"])
def test_a_bad_job_id(shell: Shell, id: str) -> None:
    assert "is not a job id" in shell.error("jobs", "show", id, code=2)


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "1e9", "many"])
def test_a_bad_limit(shell: Shell, limit: str) -> None:
    assert "--limit" in shell.error("jobs", "list", "--limit", limit, code=2)


@pytest.mark.parametrize("since", ["yesterday", "2026-01-01T00:00:00", "-5m", "9999999d"])
def test_a_bad_time(shell: Shell, since: str) -> None:
    assert "--since" in shell.error("jobs", "list", "--since", since, code=2)


def test_watch_and_json_exclude_each_other(shell: Shell) -> None:
    assert "choose one" in shell.error("stats", "--watch", "--json", code=2)
