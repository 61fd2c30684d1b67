"""The glossary is sorted, leads to pages that exist, and defines every word that the code base agreed on."""

import re
from pathlib import Path

import pytest

from docs.test_reference import anchors

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
ENTRY = re.compile(r"^## ([^\n]+)\n\n(.+?)(?=\n\n## |\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]*)(?:#([^)]+))?\)")


def entries() -> list[tuple[str, str]]:
    """The terms in the order of the page, each with its definition."""
    return [(term, text.strip()) for term, text in ENTRY.findall(GLOSSARY.read_text())]


def agreed() -> list[str]:
    """The words in the section "Words" of CONTRIBUTING.md, which stand there in italics."""
    [section] = re.findall(r"^## Words\n(.+?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    return [word for group in re.findall(r"\*([^*]+)\*", section) for word in re.split(r"[,;]\s+", group)]


def test_terms_are_sorted_and_stand_once() -> None:
    terms = [term.lower() for term, _ in entries()]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_every_heading_has_a_definition() -> None:
    headings = re.findall(r"^## (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert headings == [term for term, _ in entries()]


@pytest.mark.parametrize(("term", "text"), entries(), ids=[term for term, _ in entries()])
def test_an_entry_leads_to_its_page(term: str, text: str) -> None:
    pages = [(GLOSSARY.parent / file, anchor) for file, anchor in LINK.findall(text) if file and "://" not in file]
    assert pages, f"{term} links to no page"
    for page, anchor in pages:
        assert page.is_file(), f"{term} links to {page.name}, which does not exist"
        assert not anchor or anchor in anchors(page), f"{term} links to {page.name}#{anchor}, which does not exist"


def test_links_inside_the_glossary_lead_to_terms() -> None:
    there = anchors(GLOSSARY)
    wrong = [(term, anchor) for term, text in entries() for file, anchor in LINK.findall(text) if not file]
    assert [each for each in wrong if each[1] not in there] == []


def test_no_agreed_word_is_missing() -> None:
    words = agreed()
    assert {"task", "lease", "ending", "enqueue", "pause"} <= set(words)
    assert [word for word in words if word not in {term for term, _ in entries()}] == []


@pytest.mark.parametrize("page", ["README.md", "docs/start/index.md", "docs/guide/index.md", "docs/operate/index.md"])
def test_readers_find_it(page: str) -> None:
    assert "reference/glossary.md" in (ROOT / page).read_text()
