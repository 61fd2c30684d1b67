"""Adds a built site to the published ones: `python scripts/publish_site.py --site site --into pages`.

Each version has a folder of its own, `latest` is a copy of the newest release, and `versions.json` is the list that the
selector of versions on each page reads.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from build_site import version as version_of_package

FRONT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>headrace</title>
<meta http-equiv="refresh" content="0; url=latest/">
<a href="latest/">The documentation of headrace</a>
</html>
"""


def publish(site: Path, into: Path, version: str) -> None:
    """Put `site` into the folder of its version, and make it the latest one if no release is newer."""
    shutil.rmtree(into / version, ignore_errors=True)
    shutil.copytree(site, into / version)
    there = sorted((path.name for path in into.iterdir() if split(path.name)[0]), key=order, reverse=True)
    releases = [each for each in there if not split(each)[1]]
    latest = (releases or there)[0]
    shutil.rmtree(into / "latest", ignore_errors=True)
    shutil.copytree(into / latest, into / "latest")
    listed = [{"version": each, "title": each, "aliases": ["latest"] if each == latest else []} for each in there]
    (into / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    (into / "index.html").write_text(FRONT, encoding="utf-8")
    # GitHub Pages would leave out files whose names begin with an underscore.
    (into / ".nojekyll").touch()


def order(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Sorts versions by their numbers, and a pre-release before its release."""
    numbers, rest = split(version)
    return tuple(int(each) for each in numbers.split(".")), not rest, rest


def split(name: str) -> tuple[str, str]:
    """`0.2.0rc1` as `0.2.0` and `rc1`. The numbers are empty if the name is no version."""
    found = re.fullmatch(r"(\d+(?:\.\d+)*)(.*)", name)
    return (found[1], found[2]) if found else ("", name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Add a built site to the published ones.")
    parser.add_argument("--site", type=Path, required=True, help="the site that make docs has built")
    parser.add_argument("--into", type=Path, required=True, help="the folder with all published versions")
    given = parser.parse_args()
    publish(given.site, given.into, version_of_package())


if __name__ == "__main__":
    main()
