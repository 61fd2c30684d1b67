"""Scripts are put together from parts: each has what it uses, in an order in which Lua sees it, and nothing else."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest

from headrace.store.redis.client import scripts
from headrace.store.redis.client.scripts import Script

SCRIPTS = {name: each for name, each in vars(scripts).items() if isinstance(each, Script)}
LUA = files("headrace.store.redis") / "lua"
NAMES = dict(re.findall(r"^local (\w+) = '([^']+)'", (LUA / "names.lua").read_text(), re.MULTILINE))
PARTS = [
    part
    for place in LUA.iterdir()
    for part in ([place] if place.is_file() else place.iterdir())
    if part.name != "names.lua"
]
DEFINED = re.compile(r"^local function (\w+)", re.MULTILINE)


def bare(source: str) -> str:
    """Without comments and texts."""
    return re.sub(r"'(?:\\.|[^'\\\n])*'", "''", re.sub(r"--.*", "", source))


SHARED = {
    name: part.name
    for part in [LUA / "lib.lua", LUA / "limits.lua", *(LUA / "lib").iterdir()]
    for name in DEFINED.findall(bare(scripts.read_part(part)))
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_every_function_before_its_use(name: str):
    source = bare(SCRIPTS[name].source.decode())
    for function, part in SHARED.items():
        uses = [match.start() for match in re.finditer(rf"(?<![\w.]){function}\b", source)]
        defined = re.search(rf"\b(?:local function|local(?: \w+,)*) {function}\b", source)
        assert not uses or (defined and defined.start() < uses[0]), f"{function} of {part}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_part_that_it_does_not_use(name: str):
    source = SCRIPTS[name].source.decode()
    for part in (LUA / "lib").iterdir():
        text = scripts.read_part(part)
        if text in source:
            rest = bare(source.replace(text, ""))
            assert any(re.search(rf"\b{function}\b", rest) for function in DEFINED.findall(bare(text))), part.name


def test_every_part_is_used():
    sources = [each.source.decode() for each in SCRIPTS.values()]
    for part in PARTS:
        text = scripts.read_part(part)
        assert any(text in source for source in sources), part.name


# ── names of keys ────────────────────────────────────────────────────────────


def test_every_key_has_one_name_and_every_name_is_used():
    assert len(set(NAMES.values())) == len(NAMES)
    code = "".join(bare(part.read_text()) for part in PARTS)
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", code)] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_scripts_call_keys_by_their_names(part: Traversable):
    """A prefix of a queue, or the home of limits, followed by the letters of a key."""
    code = re.sub(r"--.*", "", part.read_text())
    letters = "|".join(map(re.escape, NAMES.values()))
    assert re.findall(rf"(?:\bp|\bg|HOME|KEYS\[1\]|\)) \.\. '(?:{letters})'", code) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_server_sees_keys_and_no_names(name: str):
    source = bare(SCRIPTS[name].source.decode())
    assert [key for key in NAMES if re.search(rf"(?<![\w.]){key}\b", source)] == []
