"""`headrace enqueue`: through the app's signature, or raw."""

from __future__ import annotations

import pytest

from cli.shell import Shell
from headrace.store.audit import whoami


def test_through_the_app(shell: Shell) -> None:
    id = shell("enqueue", "shop.charge", "7", "--kwargs", '{"shop": "acme"}', "--app", "shop:app").stdout.strip()
    job = shell.json("jobs", "show", id)
    assert (job["task"], job["queue"], job["state"]) == ("shop.charge", "billing", "ready")
    assert job["payload"] == {"args": [7, "acme"], "kwargs": {}}


def test_options(shell: Shell) -> None:
    made = shell.json(
        *("enqueue", "shop.charge", "7", '"acme"', "--app", "shop:app", "--queue", "slow", "--priority", "-3"),
        *("--tenant", "acme", "--delay", "5m"),
    )
    job = shell.json("jobs", "show", made["id"])
    assert (job["queue"], job["priority"], job["tenant"], job["state"]) == ("slow", -3, "acme", "scheduled")


@pytest.mark.parametrize("more", [("--app", "shop:app"), ("--raw",)])
def test_options_that_travel_with_the_job(shell: Shell, more: tuple[str, ...]) -> None:
    options = ("--timeout", "5s", "--max-attempts", "2", "--result-ttl", "0s", "--key", "k", "--key-ttl", "1h")
    made = shell.json("enqueue", "shop.charge", "7", '"acme"', "--webhook", "https://example.com/x", *options, *more)
    found = shell.json("jobs", "show", made["id"])["options"]
    assert found == {"timeout": 5.0, "max_attempts": 2, "result_ttl": 0.0, "webhook": "…//example.com/…"}


def test_a_raw_job_takes_no_unsafe_webhook(shell: Shell) -> None:
    assert "private" in shell.error("enqueue", "a.b", "--raw", "--webhook", "http://127.0.0.1/", code=78)
    assert shell.states() == {}


def test_a_job_shows_its_key_and_its_producer(shell: Shell) -> None:
    for more in (("--app", "shop:app"), ("--raw",)):
        made = shell.json("enqueue", "shop.charge", "7", '"acme"', "--key", f"order{more[0]}", *more)
        job = shell.json("jobs", "show", made["id"])
        assert (job["key"], job["enqueued_by"], job["options"]) == (f"order{more[0]}", whoami(), {})
        page = shell("jobs", "show", made["id"]).stdout
        assert f"by {whoami()}" in page
        assert f"order{more[0]}" in page


def test_run_at(shell: Shell) -> None:
    made = shell.json("enqueue", "a.b", "--raw", "--run-at", "2031-01-31T08:00:00+01:00")
    assert shell.json("jobs", "show", made["id"])["run_at"].startswith("2031-01-31T07:00:00")


def test_raw_needs_no_app(shell: Shell) -> None:
    made = shell.json("enqueue", "any.task", "-5", "[1, null]", "--kwargs", '{"x": {"y": true}}', "--raw")
    job = shell.json("jobs", "show", made["id"])
    assert job["payload"] == {"args": [-5, [1, None]], "kwargs": {"x": {"y": True}}}


def test_the_same_key_makes_one_job(shell: Shell) -> None:
    call = ("enqueue", "shop.charge", "7", '"acme"', "--key", "order-7", "--app", "shop:app")
    assert shell.json(*call)["id"] == shell.json(*call)["id"]
    other = ("enqueue", "shop.charge", "8", '"acme"', "--key", "order-7", "--app", "shop:app")
    assert "already made job" in shell.error(*other, code=1)
    assert shell.states() == {"ready": 1}


def test_the_app_may_come_from_the_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_APP", "shop:app")
    assert shell.json("enqueue", "shop.charge", "7", '"acme"')["id"]


def test_the_app_may_come_from_pyproject(shell: Shell) -> None:
    (shell.folder / "pyproject.toml").write_text('[tool.headrace]\napp = "shop:app"\n')
    assert shell.json("enqueue", "shop.charge", "7", '"acme"')["id"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["shop.chrage", "1"], 1, "unknown task 'shop.chrage': did you mean 'shop.charge'?"),
        (["elsewhere", "1"], 1, "unknown task 'elsewhere': is the module that declares it imported?"),
        (["shop.charge", "seven"], 2, "args[0] is not JSON"),
        (["shop.charge", "acme"], 2, "a text needs its quotes"),
        (["shop.charge", "[NaN]"], 2, "args[0][0] is nan"),
        (["shop.charge", "1e999"], 2, "finite"),
        (["shop.charge", r'"\ud800"'], 2, "surrogate"),
        (["shop.charge", '"7"', '"acme"'], 1, "order"),
        (["shop.charge", "7"], 1, "is missing 'shop'"),
        (["shop.charge", "7", "--kwargs", "[1]"], 2, "JSON object"),
        (["shop.charge", "7", '"acme"', "--kwargs", '{"sop": 1}'], 1, "has no parameter 'sop'"),
        (["shop.charge", "7", '"' + "x" * 300_000 + '"'], 1, "the limit is 262,144"),
        (["shop.charge", "7", '"acme"', "--queue", "$(touch x)"], 2, "is not a valid queue name"),
        (["shop.charge", "7", '"acme"', "--priority", "1e9"], 2, "not a whole number"),
        (["shop.charge", "7", '"acme"', "--delay", "soon"], 2, "is not a duration"),
        (["shop.charge", "7", '"acme"', "--run-at", "2031-01-01T00:00:00"], 2, "no time zone"),
        (["shop.charge", "7", '"acme"', "--delay", "1s", "--run-at", "2031-01-01T00:00:00Z"], 2, "not both"),
        (["!shop", "7"], 2, "is not a valid task name"),
    ],
)
def test_bad_input_stores_nothing(shell: Shell, arguments: list[str], code: int, says: str) -> None:
    assert says in shell.error("enqueue", *arguments, "--app", "shop:app", code=code)
    assert shell.states() == {}


def test_a_raw_payload_has_a_limit_too(shell: Shell) -> None:
    assert "the limit is 262,144" in shell.error("enqueue", "a.b", '"' + "x" * 300_000 + '"', "--raw", code=1)


def test_without_an_app_raw_must_be_said(shell: Shell) -> None:
    assert "--raw" in shell.error("enqueue", "shop.charge", "7", code=2)


def test_a_store_that_ends_with_the_command_takes_no_job(shell: Shell) -> None:
    said = shell.error("enqueue", "any.task", "--raw", "--url", "memory://", code=78, url=False)
    assert "give a store that stays" in said
