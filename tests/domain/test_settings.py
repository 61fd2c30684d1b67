"""Settings: which source overrides which, what is refused, and what is shown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.model.masked_url import mask_url
from headrace.settings import NAMES, Settings
from headrace.store import connect


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def load(folder: Path, environ: dict[str, str] | None = None, **flags) -> Settings:
    return Settings.load(start=folder, environ=environ or {}, **flags)


def sources(settings: Settings) -> dict[str, str]:
    return {origin.name: origin.source for origin in settings.explain()}


def test_defaults_alone(tmp_path):
    settings = load(project(tmp_path, ""))
    assert settings == Settings()
    assert settings.url == "sqlite:///headrace.db"
    assert settings.lease == timedelta(seconds=15)
    assert set(sources(settings).values()) == {"default"}
    assert len(NAMES) <= 31


def test_flags_beat_environment_beat_pyproject_beat_defaults(tmp_path):
    project(
        tmp_path,
        '[tool.headrace]\nconcurrency = 1\nlease = "31s"\npoll = "200ms"\nqueues = ["a", "b"]\nmax_payload = 2048\n',
    )
    environ = {"HEADRACE_CONCURRENCY": "2", "HEADRACE_LEASE": "32s", "HEADRACE_LOG_LEVEL": "DEBUG", "OTHER": "x"}
    settings = load(tmp_path, environ, concurrency=3, processes=None)
    assert (settings.concurrency, settings.lease, settings.poll) == (
        3,
        timedelta(seconds=32),
        timedelta(milliseconds=200),
    )
    assert settings.queues == ("a", "b")
    assert settings.log_level == "debug"
    assert settings.processes == 1
    found = sources(settings)
    assert found["concurrency"] == "flag"
    assert found["lease"] == "HEADRACE_LEASE"
    assert found["poll"] == str(tmp_path / "pyproject.toml")
    assert found["processes"] == "default"


def test_pyproject_is_found_upwards_and_the_nearest_counts(tmp_path):
    project(tmp_path, "[tool.headrace]\nprocesses = 7\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert load(inner).processes == 7
    project(tmp_path / "a", "[project]\nname = 'x'\n")
    assert load(inner).processes == 1


def test_an_empty_variable_is_unset(tmp_path):
    assert load(project(tmp_path, ""), {"HEADRACE_URL": ""}).url == "sqlite:///headrace.db"


def test_lists_in_the_environment_are_split_at_commas(tmp_path):
    assert load(project(tmp_path, ""), {"HEADRACE_QUEUES": "a, b,"}).queues == ("a", "b")


def test_reserved_slots(tmp_path):
    settings = load(
        project(tmp_path, '[tool.headrace]\nreserve = ["high=2"]\n'), {"HEADRACE_RESERVE": "high = 2, low=1"}
    )
    assert settings.reserve == ("high=2", "low=1")
    assert {each.name: each.value for each in settings.explain()}["reserve"] == "high=2, low=1"
    for wrong, problem in (("urgent=1", "is not a band"), ("high", "write a band and a number"), (7, "a list such as")):
        with pytest.raises(ConfigError, match=problem):
            load(tmp_path, reserve=wrong)
    with pytest.raises(ConfigError, match="takes 2 of 2 slots and leaves none for other jobs"):
        load(tmp_path, concurrency=2)


def test_replace_is_a_layer_on_top(tmp_path):
    settings = load(project(tmp_path, ""), {"HEADRACE_LEASE": "30s"}).replace(lease=None, concurrency=5, queues=["x"])
    assert settings.lease == timedelta(seconds=30)
    assert settings.concurrency == 5
    assert settings.queues == ("x",)
    assert sources(settings)["concurrency"] == "flag"
    assert sources(settings)["lease"] == "HEADRACE_LEASE"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HEADRACE_LAESE": "15s"}, r"^unknown setting HEADRACE_LAESE: did you mean HEADRACE_LEASE\?$"),
        ({"HEADRACE_ZZZ": "1"}, "unknown setting HEADRACE_ZZZ: known: url, app"),
        ({"HEADRACE_LEASE": "15"}, r"^lease = '15' is not a duration: .* \(from HEADRACE_LEASE\)$"),
        ({"HEADRACE_LEASE": "1ms"}, "lease = 1ms is too short"),
        ({"HEADRACE_CONCURRENCY": "many"}, "concurrency = 'many': a whole number from 1 to 10,000"),
        ({"HEADRACE_CONCURRENCY": "0"}, "concurrency = 0"),
        ({"HEADRACE_CONCURRENCY": "9" * 5000}, "concurrency"),
        ({"HEADRACE_QUEUES": "a,B b"}, "'B b' is not a valid queue name"),
        ({"HEADRACE_LOG_LEVEL": "loud"}, "log_level = 'loud': one of debug, info, warning, error"),
        ({"HEADRACE_DURABILITY": "none"}, "durability = 'none': one of strict, relaxed"),
        ({"HEADRACE_URL": "headrace.db"}, "url = headrace.db is not a URL"),
        ({"HEADRACE_APP": "app; rm"}, "app = 'app; rm': write package.module:app"),
        ({"HEADRACE_MAX_PAYLOAD": "1"}, "max_payload = 1"),
    ],
)
def test_s74_bad_values_say_where_they_came_from(tmp_path, environ, message):
    with pytest.raises(ConfigError, match=message):
        load(project(tmp_path, ""), environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.headrace]\nlaese = '15s'\n", r"unknown setting \[tool.headrace\] laese in .*: did you mean lease\?"),
        ("[tool.headrace]\nlease = 15\n", "lease = 15 is not a duration"),
        ("[tool.headrace]\nconcurrency = true\n", "concurrency = True"),
        ("[tool.headrace]\nqueues = [1]\n", "is not a valid queue name"),
        ("[tool.headrace]\nqueues = 1\n", "a list of queue names"),
        ("[tool.headrace]\nreserve = 1\n", "a list such as"),
        ("[tool]\nheadrace = 3\n", "must be a table"),
        ("[tool.headrace\n", "cannot be read"),
    ],
)
def test_bad_pyproject(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(project(tmp_path, text))


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(tmp_path):
    """For Services named `headrace` and `headrace-server`."""
    links = {
        "HEADRACE_SERVICE_HOST": "10.0.0.7",
        "HEADRACE_SERVICE_PORT": "8200",
        "HEADRACE_SERVICE_PORT_HTTP": "8200",
        "HEADRACE_PORT": "tcp://10.0.0.7:8200",
        "HEADRACE_SERVER_SERVICE_HOST": "10.0.0.7",
        "HEADRACE_SERVER_PORT": "tcp://10.0.0.7:8200",
        "HEADRACE_SERVER_PORT_8200_TCP": "tcp://10.0.0.7:8200",
        "HEADRACE_SERVER_PORT_8200_TCP_ADDR": "10.0.0.7",
        "HEADRACE_SERVER_PORT_8200_TCP_PROTO": "tcp",
    }
    assert Settings.load(start=tmp_path, environ={**links, "HEADRACE_LEASE": "20s"}).lease == timedelta(seconds=20)
    with pytest.raises(ConfigError, match="unknown setting HEADRACE_SUPPORT"):
        Settings.load(start=tmp_path, environ={"HEADRACE_SUPPORT": "1"})


def test_unknown_flags_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown setting leese: did you mean lease\?"):
        load(project(tmp_path, ""), leese="1s")


# ── secrets ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p%40ss@h/db", "postgresql://u:•••@h/db"),
        ("postgresql://u:p@ss@h:5432/db", "postgresql://u:•••@h:5432/db"),
        ("postgresql://u:p@ss/x@h/db", "postgresql://u:•••@h/db"),
        ("postgresql://u:p@ss?x@h/db", "postgresql://u:•••@h/db"),
        ("postgresql://u:p@ss#x@h/db", "postgresql://u:•••@h/db"),
        ("postgresql://:p@ss@h/db", "postgresql://:•••@h/db"),
        ("postgresql://u@h/db?password=p@ss&sslmode=require", "postgresql://u@h/db?password=•••&sslmode=require"),
        ("postgresql://u@h/db?sslpassword=p@ss", "postgresql://u@h/db?sslpassword=•••"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db"),
        ("memory://", "memory://"),
        ("user=u password=p@ss", "•••"),
    ],
)
def test_urls_are_shown_without_their_secrets(url, shown):
    assert mask_url(url) == shown
    assert "p@ss" not in mask_url(url)


def test_nothing_shows_the_password(tmp_path):
    settings = load(project(tmp_path, ""), url="postgresql://u:hunter2@h/db")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.explain())
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {"HEADRACE_URL": "u:hunter2@h/db"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///a.db", "sqlite:///a.db?sync=normal"),
        ("sqlite:///sync.db", "sqlite:///sync.db?sync=normal"),
        ("sqlite:///a.db?sync=full", "sqlite:///a.db?sync=full"),
        ("postgresql://h/db?sslmode=require", "postgresql://h/db?sslmode=require&synchronous_commit=off"),
        ("memory://", "memory://"),
    ],
)
def test_relaxed_durability_is_told_in_the_stores_words(url, told):
    assert Settings(url=url).store_url == url
    assert Settings(url=url, durability="relaxed").store_url == told


@pytest.mark.parametrize(
    "value", ["javascript:alert({trace_id})", "tempo.example/{trace_id}", "https://tempo.example/", 7]
)
def test_the_page_of_a_trace_is_an_address_with_a_place_for_its_id(tmp_path, value):
    with pytest.raises(ConfigError, match="trace_url = "):
        load(project(tmp_path, ""), trace_url=value)
    assert load(tmp_path, {"HEADRACE_TRACE_URL": "https://tempo.example/{trace_id}?a=b"}).trace_url.endswith("?a=b")


# ── advice ───────────────────────────────────────────────────────────────────


def test_the_defaults_have_no_problems():
    assert Settings().problems() == []


@pytest.mark.parametrize(
    ("values", "level", "about"),
    [
        ({"lease": "14s"}, "error", "lease"),
        ({"poll": "2s"}, "warning", "poll"),
        ({"reap": "20s"}, "warning", "reap"),
        ({"drain": "60s"}, "warning", "drain"),
        ({"drain": "2s"}, "warning", "kill_grace"),
        ({"durability": "relaxed"}, "warning", "durability"),
        ({"url": "memory://"}, "warning", "url"),
    ],
)
def test_settings_that_do_not_go_together(values, level, about):
    (problem,) = Settings().replace(**values).problems()
    assert (problem.level, problem.about) == (level, about)


@pytest.mark.parametrize("url", ["redis://u:[s3cret@h", "postgresql://u:s3]cret@h/db", "http://[s3cret"])
def test_a_url_that_cannot_be_read_says_how_to_write_it_and_shows_nothing(tmp_path, url):
    with pytest.raises(ConfigError, match=r"write \[ as %5B") as caught:
        load(project(tmp_path, ""), url=url)
    assert "cret" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"write \[ as %5B"):
        connect(url)
