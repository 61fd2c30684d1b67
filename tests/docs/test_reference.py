"""The reference leaves nothing out: every setting with its default, every command; and links lead to headings."""

import re
from pathlib import Path

import click
import pytest

from headrace.cli.root import root
from headrace.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
ANCHORED = re.compile(r"\[[^\]]+\]\(([^)#]*)#([^)]+)\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in ANCHORED.findall(page.read_text()):
        if "://" not in target:
            assert anchor in anchors(page.parent / target if target else page), (
                f"{page.name} links to {target}#{anchor}"
            )


def test_every_setting_is_there_with_its_default() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = {name: value.strip(" `") for name, value in re.findall(r"^\| `(\w+)` \|([^|]*)\|", page, re.MULTILINE)}
    assert rows == {each.name: each.value for each in Settings().explain()}


def test_every_command_is_there() -> None:
    rows = (ROOT / "docs" / "reference" / "cli.md").read_text().splitlines()
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        verbs = command.list_commands(context) if isinstance(command, click.Group) else [name]
        for verb in verbs:
            named = re.compile(rf"`headrace {name}\b.*" + ("" if verb == name else rf"(?<![\w-]){verb}\b"))
            assert any(named.search(row) for row in rows), f"docs/reference/cli.md lacks headrace {name} {verb}"
