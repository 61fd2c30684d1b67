"""Secrets that users give to headrace, and every place where they must not appear; S72, S74."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigError, Headrace
from headrace.errors import HeadraceError
from headrace.model.job import JobState
from headrace.settings import Settings
from headrace.store import connect
from server.running import running
from webhooks.receiver import receiver

WRONG = [
    "postgres://u:p%40ss@127.0.0.1:1/db",
    "postgresql://u:p%40ss@no-such-host.invalid/db",
    "postgresql://127.0.0.1:1/db?user=u&password=p%40ss",
    "redis://u:p%40ss@127.0.0.1:1/0",
    "https://p%40ss@127.0.0.1:1",
]


def leaks(text: str, *secrets: str) -> list[str]:
    """Of these, in whatever form, those that stand in the text."""
    forms = {secret: (secret, repr(secret)[1:-1], base64.b64encode(secret.encode()).decode()) for secret in secrets}
    return [secret for secret, written in forms.items() if any(form in text for form in written)]


@pytest.mark.parametrize("url", WRONG)
async def test_s72_a_password_in_a_url_is_not_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = [repr(Settings(url=url)), *(str(each) for each in Settings(url=url).explain())]
    store = connect(url)
    told.append(repr(store))
    with pytest.raises(HeadraceError) as caught:
        await store.open()
    told += [str(caught.value), repr(caught.value), *map(str, getattr(caught.value, "__notes__", ()))]
    await store.close()
    told += [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    assert leaks("\n".join(told), "p@ss", "p%40ss") == []


@pytest.mark.parametrize("url", WRONG[:1] + WRONG[3:])
@pytest.mark.parametrize("command", [("doctor",), ("jobs", "list"), ("serve", "shop:app"), ("worker", "shop:app")])
async def test_s72_nor_by_the_command_line(url: str, command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from headrace import Headrace\napp = Headrace()\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace.cli", *command,
        cwd=tmp_path, env={**os.environ, "HEADRACE_URL": url, "HEADRACE_LOG_LEVEL": "debug"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    out = b""
    try:
        async with asyncio.timeout(60):
            while line := await process.stdout.readline():
                out += line
                if command[0] == "worker" and b"127.0.0.1:1" in line and b"cannot be reached" in line:
                    process.terminate()  # it would wait for its store
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"cannot be reached" in out, out
    assert b"Traceback" not in out
    assert leaks(out.decode(), "p@ss", "p%40ss") == []


async def test_s72_an_argument_that_is_hidden_is_seen_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headrace")
    secret = "whsec_" + base64.b64encode(b"k" * 32).decode()
    app = Headrace("memory://", webhook_secret=secret, webhook_allow=["127.0.0.1"], poll="50ms", drain="2s")

    @app.task(name="login", redact=["password"])
    async def login(user: str, password: str, extra: Any = None) -> None:
        log = logging.getLogger("headrace.tasks")
        log.info("logging in")
        raise RuntimeError(f"wrong password {password!r} of {user}: {extra}")

    seen: list[str] = []
    async with receiver() as there, running(app) as server:
        body = {
            "task": "login",
            "kwargs": {"user": "me", "password": "hunter2", "extra": {"password": "hunter2"}},
            "max_attempts": 1,
            "webhook": there.url(),
        }
        made = await server.http.post("/v1/jobs", json=body)
        assert made.status_code == 201, made.text
        id = made.json()["id"]
        bad = await server.http.post("/v1/jobs", json={**body, "kwargs": {"user": 1, "password": "hunter2"}})
        assert bad.status_code == 422
        seen.append(bad.text)
        async with app.worker():
            answer = await server.http.get(f"/v1/jobs/{id}/result", params={"wait": "30s"})
            seen.append(answer.text)
            [got] = await there.gets(1)
        assert answer.json()["state"] == JobState.DEAD
        seen += [got.body.decode(), str(got.headers)]
        for path in (
            f"/v1/jobs/{id}",
            f"/v1/jobs/{id}/explain",
            "/v1/jobs",
            "/v1/jobs?text=password",
            "/v1/dead",
            "/v1/queues",
            "/v1/stats",
            "/metrics",
            "/v1/workers",
            "/v1/tasks",
            "/v1/audit",
        ):
            reply = await server.http.get(path)
            assert reply.status_code == 200, path
            seen.append(reply.text)
        async with server.http.stream("GET", f"/v1/jobs/{id}/events") as events:
            seen += [line async for line in events.aiter_lines()]
        # There is no search by what is hidden.
        assert (await server.http.get("/v1/jobs", params={"text": "hunter2"})).json()["items"] == []
    assert "wrong password" in "\n".join(seen)  # what was said is there, but for that
    seen += [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    assert leaks("\n".join(seen), "hunter2") == []
    # Of arguments at large there is nothing in the log.
    assert not [record for record in caplog.records if "'me'" in record.getMessage() or '"me"' in record.getMessage()]


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['id']",
        "[tool.headrace]\nurl = !!python/object/apply:os.system ['id']\n",
        "[tool.headrace]\n__class__ = 'os.system'\n",
        "[tool.headrace]\nshell = 'id'\n",
    ],
)
def test_s74_settings_are_data(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError):
        Settings.load(environ={}, start=tmp_path)


def test_s74_unknown_variables_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting HEADRACE_SHELL"):
        Settings.load(environ={"HEADRACE_SHELL": "id"})
