"""The documentation site: every page is in its navigation, a broken link stops the build, nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.build_site import ROOT_PAGES, SiteNotBuilt, build, version

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)=\"?([^\"\s>]+)")


def pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else (entry,):
            if isinstance(target, list):
                yield from pages_of(target)
            else:
                yield target


@pytest.fixture(scope="module")
def nav() -> list[str]:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    return list(pages_of(config["project"]["nav"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    into = tmp_path_factory.mktemp("site") / "site"
    build(into)
    return into


def test_the_navigation_has_every_page_once(nav: list[str]) -> None:
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(set(nav) - docs) == ["changelog.md", "contributing.md"]
    assert sorted(docs - set(nav)) == []
    assert len(nav) == len(set(nav))
    assert {"changelog.md", "contributing.md"} <= set(ROOT_PAGES.values())


def test_the_search_finds_every_page(site: Path, nav: list[str]) -> None:
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["items"]}
    wanted = {re.sub(r"(^|/)index\.md$|\.md$", "/", page).lstrip("/") for page in nav}
    assert sorted(wanted - found) == []
    assert not any(place.startswith("files/") for place in found)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = {
        target: page.relative_to(site).as_posix()
        for page in site.rglob("*.html")
        for target in LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert {target: page for target, page in loaded.items() if re.match(r"(https?:)?//", target)} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(https?:[^)]*)|@import[^;]*//", styles) == []


def test_the_page_says_which_version_it_describes(site: Path) -> None:
    assert f"headrace {version()}" in (site / "index.html").read_text(encoding="utf-8")


def test_files_of_the_repository_that_pages_link_to_have_pages(site: Path) -> None:
    page = (site / "operate" / "deploy" / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'href="((?:\.\./)+files/[^"]+)"', page)
    assert len(links) > 3
    assert all((site / "operate" / "deploy" / link / "index.html").exists() for link in links)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with two pages."""
    root = tmp_path / "repository"
    (root / "docs").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (root / "zensical.toml").write_text('[project]\nsite_name = "small"\n')
    (root / "docs" / "index.md").write_text("# One\n\n[Two](two.md#here)\n\n```\n[code](nowhere)\n```\n")
    (root / "docs" / "two.md").write_text("# Two\n\n## Here\n\n[The version](../pyproject.toml)\n")
    return root


def test_a_small_site_is_built(small: Path, tmp_path: Path) -> None:
    build(tmp_path / "site", small)
    assert "1.2.3" in (tmp_path / "site" / "files" / "pyproject.toml" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", ["two.md#there", "three.md", "../LICENSE"])
def test_a_broken_link_stops_the_build_and_leaves_the_site_alone(small: Path, tmp_path: Path, link: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("built before")
    with (small / "docs" / "index.md").open("a") as page:
        page.write(f"\n[Broken]({link})\n")
    with pytest.raises(SiteNotBuilt, match=r"index\.md"):
        build(tmp_path / "site", small)
    assert (tmp_path / "site" / "index.html").read_text() == "built before"
