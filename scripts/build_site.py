"""Builds the documentation site: `python scripts/build_site.py --into site`. A warning of the builder is an error.

The pages in `docs/` link to files of the repository: the changelog, an example, a unit for systemd. Readers of the
repository follow these links. The site has no such files, so this script gives it a page for each of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
THEME = Path(__file__).parent / "site_theme"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*$", re.MULTILINE | re.DOTALL)
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
LANGUAGES = {
    ".js": "javascript",
    ".mjs": "javascript",
    ".py": "python",
    ".service": "ini",
    ".sh": "bash",
    ".sql": "sql",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


class SiteNotBuilt(Exception):
    """What is wrong with the pages."""


def version(root: Path = ROOT) -> str:
    """The version of the package that the site describes."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


class Stage:
    """A folder with every page of the site, in which each link leads to another page."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._docs = root / "docs"
        self._files: set[Path] = set()
        """Files and folders of the repository that pages link to and that need a page."""

    def fill(self) -> None:
        """Write all pages."""
        for source in sorted(path for path in self._docs.rglob("*") if path.is_file()):
            place = source.relative_to(self._docs)
            if source.suffix == ".md":
                self._write(place, self._linked(source, place))
            else:
                (self._folder / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, self._folder / place)
        for name, page in ROOT_PAGES.items():
            if (self._root / name).exists():
                self._write(Path(page), self._linked(self._root / name, Path(page)))
        for file in sorted(self._files):
            if file.is_dir() and not self._is_source(file):
                self._files.update(_inside(file))
        for file in sorted(self._files):
            text = self._listing(file) if file.is_dir() else _block(file)
            # A search is for the documentation, so it leaves these pages out.
            head = f"---\nsearch:\n  exclude: true\n---\n\n# {file.relative_to(self._root)}\n\n"
            self._write(self._page_of(file), head + text)

    def _write(self, place: Path, text: str) -> None:
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def _linked(self, source: Path, place: Path) -> str:
        """The text of a page, with links that lead to the pages of the site. Blocks of code stay as they are."""

        def changed(match: re.Match[str]) -> str:
            target = (source.parent / match[1]).resolve()
            if not target.exists():
                raise SiteNotBuilt(f"{source.relative_to(self._root)} links to {match[1]}, which does not exist")
            return os.path.relpath(self._place_of(target), place.parent) + match[2]

        text = source.read_text(encoding="utf-8")
        parts: list[str] = []
        end = 0
        for block in CODE.finditer(text):
            parts += LINK.sub(changed, text[end : block.start()]), block[0]
            end = block.end()
        return "".join((*parts, LINK.sub(changed, text[end:])))

    def _place_of(self, target: Path) -> Path:
        if target.is_relative_to(self._docs):
            return target.relative_to(self._docs)
        name = target.relative_to(self._root).as_posix()
        if name in ROOT_PAGES:
            return Path(ROOT_PAGES[name])
        self._files.add(target)
        return self._page_of(target)

    def _page_of(self, file: Path) -> Path:
        name = file.relative_to(self._root)
        return Path("files", name, "index.md") if file.is_dir() else Path("files", f"{name}.md")

    def _is_source(self, file: Path) -> bool:
        """A folder of the package has many files, so its page has only their names."""
        return file.is_relative_to(self._root / "src")

    def _listing(self, folder: Path) -> str:
        rows: list[str] = []
        for file in sorted(_inside(folder)):
            name = f"`{file.relative_to(folder)}`"
            place = os.path.relpath(self._page_of(file), self._page_of(folder).parent)
            rows.append(f"- {name}" if self._is_source(file) else f"- [{name}]({place})")
        return "\n".join(rows) + "\n"


def _inside(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def _block(file: Path) -> str:
    # A fence of six tildes is longer than any fence that a file of the repository has inside.
    return f"~~~~~~ {LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n~~~~~~\n"


def build(into: Path, root: Path = ROOT) -> None:
    """Build the site, and put it into place only if the builder has no warning."""
    with tempfile.TemporaryDirectory(prefix="headrace-site-") as name:
        folder = Path(name)
        Stage(folder / "docs", root.resolve()).fill()
        config = (root / "zensical.toml").read_text(encoding="utf-8")
        (folder / "zensical.toml").write_text(config.replace("VERSION", version(root)), encoding="utf-8")
        shutil.copytree(THEME, folder / "scripts" / THEME.name)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        environment = {**os.environ, "NO_COLOR": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
        warnings, _, trace = (done.stdout + done.stderr).partition("Traceback (most recent call last)")
        if done.returncode or "Warning" in warnings:
            raise SiteNotBuilt(plain(warnings) if "Warning" in warnings else trace)
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(folder / "site", into)


def plain(text: str) -> str:
    """What the builder says, without colours, which it uses everywhere."""
    return re.sub(r"\x1b\[[\d;]*m", "", text).strip()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--into", type=Path, default=ROOT / "site", help="the folder of the site; it is replaced")
    into: Path = parser.parse_args().into
    try:
        build(into)
    except SiteNotBuilt as error:
        sys.exit(f"{error}\nerror: the site was not built")
    print(f"The site of headrace {version()} is in {into}.")


if __name__ == "__main__":
    main()
