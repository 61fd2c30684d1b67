"""The drawings in docs/internals show the package as it is."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "draw_floors.py"))


def test_the_drawings_are_what_the_script_draws_now(script: dict[str, Any]):
    drawn: dict[Path, str] = script["drawings"]()
    assert sorted(file.name for file in drawn) == ["floors.svg", "way-of-a-job.svg"]
    for file, drawing in drawn.items():
        assert file.read_text(encoding="utf-8") == drawing, f"{file.name} is old: run python scripts/draw_floors.py"


def test_every_drawing_has_both_themes_and_fits_its_width(script: dict[str, Any]):
    for drawing in script["drawings"]().values():
        assert "prefers-color-scheme: dark" in drawing
        assert all(float(x) < script["WIDTH"] for x in re.findall(r' x="([\d.]+)"', drawing))


def test_a_name_that_a_module_does_not_define_is_refused(script: dict[str, Any]):
    script["check_name"]("headrace.client.client", "Client.place")
    with pytest.raises(script["WrongMap"], match=r"headrace\.client\.client defines no Client\.gone"):
        script["check_name"]("headrace.client.client", "Client.gone")


def test_the_floors_follow_the_imports(script: dict[str, Any]):
    imports = script["Imports"]()
    assert all(imports.level(below) < imports.level(name) for name in imports.below for below in imports.below[name])
    assert imports.linked("headrace.client.client", "headrace.store.contract")
    assert not imports.linked("headrace.policy.retry", "headrace.store.contract")
