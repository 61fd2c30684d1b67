"""Both type checkers accept every call in good.py, and refuse exactly the marked lines of bad.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ("good.py", "bad.py")

Found = dict[str, set[int]]


def pyright(folder: Path) -> Found:
    config = {
        "include": list(FILES),
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }
    # Paths must lie below the file that names them.
    for name in FILES:
        shutil.copy(HERE / name, folder)
    path = folder / "pyrightconfig.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "-p", str(path), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES), done.stdout + done.stderr
    found: Found = {name: set() for name in FILES}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            found[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return found


def mypy(folder: Path) -> Found:
    files = [str(HERE / name) for name in FILES]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={folder}",
        "--python-version=3.11",
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    found: Found = {name: set() for name in FILES}
    for path, line in re.findall(r"^(.+?):(\d+): error:", done.stdout, re.MULTILINE):
        found[Path(path).name].add(int(line))
    return found


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_exactly_the_marked_lines_are_refused(checker: Callable[[Path], Found], tmp_path: Path):
    found = checker(tmp_path)
    for name in FILES:
        lines = (HERE / name).read_text().splitlines()
        marked = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
        assert found[name] == marked, name
    assert len(found["bad.py"]) > 30
