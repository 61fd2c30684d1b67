"""What commands print."""

from __future__ import annotations

import json

import pytest

from headrace.cli import output

UNSEEN = [
    "\x1b[2J",
    "\x7f",
    "\x85",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u2028",
    "\ufeff",
    "\ud83d\ude00\U000e0041",
]


@pytest.mark.parametrize("text", UNSEEN, ids=ascii)
def test_s71_a_json_document_has_no_sign_that_a_terminal_obeys(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    document = {"note": f"before {text} after", text: ["é", "日本", text]}
    output.emit(document)
    shown = capsys.readouterr().out
    assert all(sign.isprintable() or sign == "\n" for sign in shown), ascii(shown)
    assert json.loads(shown) == document
    assert "é" in shown
    assert "日本" in shown
