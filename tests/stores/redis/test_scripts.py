"""Scripts are put together from parts: each has what it uses, in an order in which Lua sees it, and nothing else."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from headrace.store.redis.client import scripts
from headrace.store.redis.client.scripts import Script

SCRIPTS = {name: each for name, each in vars(scripts).items() if isinstance(each, Script)}
LUA = files("headrace.store.redis") / "lua"
DEFINED = re.compile(r"^local function (\w+)", re.MULTILINE)


def bare(source: bytes) -> str:
    """Without comments and texts."""
    return re.sub(r"'(?:\\.|[^'\\\n])*'", "''", re.sub(r"--.*", "", source.decode()))


SHARED = {
    name: part.name
    for part in [LUA / "lib.lua", LUA / "limits.lua", *(LUA / "lib").iterdir()]
    for name in DEFINED.findall(bare(part.read_bytes()))
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_every_function_before_its_use(name: str):
    source = bare(SCRIPTS[name].source)
    for function, part in SHARED.items():
        uses = [match.start() for match in re.finditer(rf"(?<![\w.]){function}\b", source)]
        defined = re.search(rf"\b(?:local function|local(?: \w+,)*) {function}\b", source)
        assert not uses or (defined and defined.start() < uses[0]), f"{function} of {part}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_no_part_that_it_does_not_use(name: str):
    source = SCRIPTS[name].source
    for part in (LUA / "lib").iterdir():
        text = part.read_bytes()
        if text in source:
            rest = bare(source.replace(text, b""))
            assert any(re.search(rf"\b{function}\b", rest) for function in DEFINED.findall(bare(text))), part.name


def test_every_part_is_used():
    sources = [each.source for each in SCRIPTS.values()]
    parts = [LUA / "lib.lua", *LUA.iterdir()]
    files_of = [file for part in parts for file in ([part] if part.is_file() else part.iterdir())]
    for part in files_of:
        text = part.read_bytes()
        assert any(text in source for source in sources), part.name
