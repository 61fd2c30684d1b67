"""The reference shows every option as the code declares it, and the guide leaves none of a task's options out."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from headrace.task.task_options import OPTIONS

ROOT = Path(__file__).parents[2]


def test_the_page_of_options_is_made_from_their_declarations() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "option_tables.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run: python scripts/option_tables.py"


def test_the_guide_names_every_option_of_a_task() -> None:
    page = (ROOT / "docs" / "guide" / "tasks.md").read_text(encoding="utf-8")
    table = page[page.index("| option |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(OPTIONS)
