"""The package itself: what it needs, and what it does when it is only imported; S78, S80."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import uvicorn
from hatchling.builders.wheel import WheelBuilder
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import headrace
from headrace.server.http import listener

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

RUNTIME = {"click", "cronsim", "h11", "msgspec", "rich"}
"""Each of them for a reason: the command line, cron's arithmetic, answers to webhooks, types and bytes, tables for people."""
EXTRAS = {
    "postgres": {"asyncpg"},
    "redis": {"hiredis"},
    "http": {"httpx2"},
    "server": {"httptools", "starlette", "uvicorn"},
    "otel": {"opentelemetry-api"},
    "sentry": {"sentry-sdk"},
    "tui": {"textual"},
    "archive": {"pyarrow"},
    "uvloop": {"uvloop"},
    "all": {"headrace"},
}

IMPORT_ALL = """
import json, sys, importlib, pkgutil
seen = []
def hook(event, given):
    if event.startswith("socket.") and event not in {"socket.__new__", "socket.gethostname"}:
        seen.append(event)
    if event in {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}:
        seen.append(event)
sys.addaudithook(hook)
import headrace
names = [each.name for each in pkgutil.walk_packages(headrace.__path__, "headrace.")]
names = [each for each in names if not each.endswith("__main__") and ".django" not in each]
for name in names:
    importlib.import_module(name)
print(json.dumps({"seen": seen, "count": len(names)}))
"""


def names(wanted: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", each, maxsplit=1)[0] for each in wanted}


def test_s80_what_it_needs_is_a_fixed_list() -> None:
    assert names(PROJECT["project"]["dependencies"]) == RUNTIME
    extras = PROJECT["project"]["optional-dependencies"]
    assert {extra: names(wanted) for extra, wanted in extras.items()} == EXTRAS


def test_s78_importing_it_talks_to_nobody_and_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["count"] > 200
    assert found["seen"] == []


def test_s78_the_build_runs_one_hook_and_no_other_code() -> None:
    """The hook builds the dashboard, because its built files are no part of the repository and a wheel needs them."""
    assert not (ROOT / "setup.py").exists()
    assert PROJECT["build-system"]["build-backend"] == "hatchling.build"
    build = PROJECT["tool"]["hatch"]["build"]
    assert build["hooks"] == {"custom": {"path": "scripts/wheel_hook.py"}}
    assert set(build) == {"artifacts", "hooks", "targets"}
    assert set(build["targets"]) == {"wheel"}
    wheel = build["targets"]["wheel"]
    assert set(wheel) == {"packages"}
    assert wheel["packages"] == ["src/headrace"]
    assert Path(headrace.__file__).parent == ROOT / "src" / "headrace"


def test_s78_the_dashboard_is_built_from_packages_of_known_content() -> None:
    """The lock file names no server, and a hash for each package. No package runs code when it is installed."""
    text = (ROOT / "dashboard" / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    assert packages.pop("")["name"] == "headrace-dashboard"
    for name, each in packages.items():
        assert each["integrity"].startswith("sha512-"), name
        assert "resolved" not in each, name
        assert "hasInstallScript" not in each or each.get("optional"), name
    assert "ignore-scripts=true" in (ROOT / "dashboard" / ".npmrc").read_text().splitlines()


def test_s78_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """In other folders, of files with other times."""
    source, wheels = ROOT, list[bytes]()
    for name in ("one", "two"):
        tree = tmp_path / name
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / "src", tree / "src", ignore=skipped, copy_function=shutil.copy)
        skipped = shutil.ignore_patterns("__pycache__", "node_modules")
        for part in ("dashboard", "scripts"):
            shutil.copytree(source / part, tree / part, ignore=skipped, copy_function=shutil.copy)
        for part in (".gitignore", "pyproject.toml", PROJECT["project"]["readme"], "LICENSE"):
            shutil.copy(source / part, tree / part)
        source = tree
        [wheel] = WheelBuilder(str(tree)).build(directory=str(tmp_path / f"{name}.dist"), versions=["standard"])
        wheels.append(Path(wheel).read_bytes())
        with zipfile.ZipFile(wheel) as packed:
            shipped = packed.namelist()
        # Floors, rival layouts, load clients and throw-away servers serve this repository only.
        assert not [
            each for each in shipped if "servers" in each or "peers" in each or "floor" in each.split("/")[1:-1]
        ]
        assert not [each for each in shipped if each.startswith("headrace/bench/") and each.count("/") > 2]
        assert "headrace/server/page/dashboard/index.html" in shipped
        assert {each.partition("/")[0] for each in shipped} == {"headrace", "headrace-0.1.0.dist-info"}
    assert wheels[0] == wheels[1]


def test_the_listener_builds_on_one_minor_version_of_uvicorn() -> None:
    """The listener replaces methods that uvicorn does not document. A new minor version needs a look at them first."""
    [wanted] = [each for each in PROJECT["project"]["optional-dependencies"]["server"] if each.startswith("uvicorn")]
    pinned = re.fullmatch(r"uvicorn>=0\.(\d+),<0\.(\d+)", wanted)
    assert pinned is not None
    assert int(pinned[2]) == int(pinned[1]) + 1
    assert uvicorn.__version__.split(".")[:2] == ["0", pinned[1]]
    for ours, theirs, new in (
        (listener.Protocol, HttpToolsProtocol, {"leave", "overdue"}),
        (listener.Server, uvicorn.Server, {"port", "stop", "up"}),
    ):
        methods = {name for name in vars(ours) if not name.startswith("_") and not hasattr(object, name)}
        own = {name for name in methods if callable(vars(ours)[name]) or isinstance(vars(ours)[name], property)}
        assert {name for name in own if not hasattr(theirs, name)} == new
