"""Statements by verb: reads `sql/<verb>.sql`, where each statement follows a line `-- name: <name>`."""

from __future__ import annotations

import re
from importlib.resources import files

ROOT = files("headrace.store.sqlite")
"""The folder that holds `sql/` and `schema/`."""
_HEADER = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(verb: str) -> dict[str, str]:
    """The statements of a verb by name."""
    text = (ROOT / "sql" / f"{verb}.sql").read_text(encoding="utf-8")
    parts = _HEADER.split(text)
    return {name: _bare(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _bare(body: str) -> str:
    """A statement without comments, because SQLite would parse them for every size of a bulk insert."""
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
