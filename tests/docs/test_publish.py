"""The published site has every version, and `latest` is the newest release."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.publish_site import publish


def test_versions_are_published_side_by_side(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in ("0.9.0", "0.10.0rc1", "0.10.0", "0.9.1", "0.11.0b1"):
        built = tmp_path / number
        built.mkdir()
        (built / "index.html").write_text(number)
        publish(built, pages, number)
    listed = json.loads((pages / "versions.json").read_text())
    assert [each["version"] for each in listed] == ["0.11.0b1", "0.10.0", "0.10.0rc1", "0.9.1", "0.9.0"]
    assert {each["version"]: each["aliases"] for each in listed if each["aliases"]} == {"0.10.0": ["latest"]}
    assert (pages / "latest" / "index.html").read_text() == "0.10.0"
    assert (pages / "0.9.1" / "index.html").read_text() == "0.9.1"
    assert 'url=latest/"' in (pages / "index.html").read_text()


def test_a_version_that_is_published_again_replaces_its_pages(tmp_path: Path) -> None:
    for text, name in (("old", "gone.html"), ("new", "index.html")):
        built = tmp_path / text
        built.mkdir()
        (built / name).write_text(text)
        publish(built, tmp_path / "pages", "1.0.0")
    assert sorted(path.name for path in (tmp_path / "pages" / "latest").iterdir()) == ["index.html"]
    assert len(json.loads((tmp_path / "pages" / "versions.json").read_text())) == 1
