"""Every page's examples are run: Python blocks in one namespace, files written, `$ headrace` lines executed, SQL too."""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FIRST_PAGES = (ROOT / "README.md", ROOT / "docs" / "start" / "index.md")
"""Pages that a new user follows line by line: `test_first_pages.py` does the same."""
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./]+\.py)$")
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass
class Block:
    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 2)


def store_of(page: Path) -> str:
    found = re.search(r"<!-- store: (\w+) -->", page.read_text())
    return found[1] if found else "sqlite"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of its own to run a page in, with a store behind HEADRACE_URL."""
    page: Path = request.param
    store = store_of(page)
    url = "sqlite:///headrace.db" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("HEADRACE_URL", url)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    before = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - before:
        if (file := getattr(sys.modules[module], "__file__", None)) and Path(file).is_relative_to(tmp_path):
            del sys.modules[module]


def run_python(block: Block, page: Path, namespace: dict[str, Any], runner: asyncio.Runner) -> None:
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:

        async def run() -> None:
            await eval(code, namespace)

        runner.run(run())
    else:
        exec(code, namespace)


def run_console(block: Block, page: Path) -> None:
    for line in block.text.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(["bash", "-c", line[2:]], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, f"{name_of(page)}:{block.line}: {line}\n{done.stdout}{done.stderr}"


def run_sql(block: Block, url: str) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(block.text.encode())


@pytest.mark.timeout(600)  # on the slowest machine
@pytest.mark.parametrize(
    ("page_folder", "page"),
    [(page, page) for page in PAGES if page not in FIRST_PAGES],
    ids=name_of,
    indirect=["page_folder"],
)
def test_examples_run(page_folder: Path, page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.language == "python" and (name := FILE_NAME.match(block.text.partition("\n")[0])):
                target = page_folder / name[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
            elif block.language == "python":
                run_python(block, page, namespace, runner)
            elif block.language == "console":
                run_console(block, page)
            elif block.language == "sql":
                run_sql(block, os.environ["DATABASE_URL"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"
