"""Pages of the reference that scripts write: they are up to date, and every public name has a docstring and a place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from scripts import command_reference, python_reference, setting_table
from scripts.python_reference import FIELDS_ARE_OPTIONS, INTERNAL, Reference, doc

ADVICE = "run: make reference"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def test_the_python_reference_is_made_from_the_docstrings(reference: Reference) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in python_reference.FOLDER.glob("*.md")}
    made = reference.files()
    assert sorted(written) == sorted(made), ADVICE
    assert [name for name, text in made.items() if written[name] != text] == [], ADVICE


def test_the_page_of_commands_is_made_from_the_commands() -> None:
    assert command_reference.PAGE.read_text(encoding="utf-8") == command_reference.page(), ADVICE


def test_the_page_of_settings_is_made_from_their_declarations() -> None:
    assert setting_table.PAGE.read_text(encoding="utf-8") == setting_table.page(), ADVICE


def test_every_public_name_is_in_the_reference(reference: Reference) -> None:
    assert reference.public == list(headrace.__all__)
    titles = {title.removeprefix("headrace.") for title in reference.places}
    assert sorted(set(headrace.__all__) - titles) == []


def test_everything_in_the_reference_has_a_docstring(reference: Reference) -> None:
    """The fields of some classes are options, which a table explains."""
    silent = [name for name, thing in reference.shown() if not doc(thing)]
    assert [name for name in silent if name.partition(".")[0] not in FIELDS_ARE_OPTIONS] == []


def test_members_that_the_reference_leaves_out_exist(reference: Reference) -> None:
    things = dict(reference.shown())
    for title, names in INTERNAL.items():
        assert sorted(names - things[title].all_members.keys()) == [], title


def test_a_heading_is_there_once_on_each_page(reference: Reference) -> None:
    for name, text in reference.files().items():
        anchors = [python_reference.anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        assert sorted({each for each in anchors if anchors.count(each) > 1}) == [], name


def test_the_command_line_page_leads_to_every_option() -> None:
    text = (Path(setting_table.ROOT) / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert "(commands.md)" in text
