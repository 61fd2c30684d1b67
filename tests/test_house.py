"""The rules of the source tree: one name for one thing, no loose files, short files, sentences with a component."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headrace"
LOOSE = {"__init__.py", "app.py", "errors.py", "py.typed", "settings.py"}
LONGEST = 400
NOT_A_COMPONENT = re.compile(r"\b(nobody|whoever|somebody|everybody|anybody|who waits)\b", re.IGNORECASE)
UNIX_USER = re.compile(r"[\"`]nobody[\"`]")
PROSE = {"", ".js", ".lua", ".md", ".mjs", ".py", ".sh", ".sql"}
WRITTEN_OUT = {
    "app.py": {"Headrace.close", "_Home.put"},
    "client/children.py": {"ChildJobs.put", "ChildJobs.put_keyed"},
    "client/groups.py": {"OpenGroup.enqueue_many", "OpenGroup.seal"},
    "client/linked.py": {"LinkedCall.place", "LinkedCall.put"},
    "client/linked_home.py": {
        "LinkedHome.put",
        "LinkedHome.put_after",
        "LinkedHome.put_call",
        "LinkedHome.put_members",
    },
    "client/once.py": {"Once.first"},
    "client/produce.py": {
        "InlineRunner.run",
        "Producer.enqueue",
        "Producer.enqueue_many",
        "Producer.enqueue_members",
        "Producer.put_batch_in",
        "Producer.put_in",
    },
    "outbox/__init__.py": {"Outbox.enqueue_in"},
    "task/children.py": {"Children.put", "Children.put_keyed", "Children.read", "Children.revive"},
    "task/group.py": {"CurrentGroup.enqueue_many"},
    "task/handle.py": {"Handle.result", "Handle.then", "Watch.put_call"},
    "task/task.py": {
        "Bound.enqueue",
        "Home.put",
        "Home.put_after",
        "Home.put_call",
        "Home.put_members",
        "Home.put_undo",
        "Task.enqueue",
    },
    "testing/inlining.py": {"Inline.run"},
    "testing/store.py": {
        "FrontStore.add_steps_in",
        "FrontStore.enqueue_in",
        "FrontStore.followed_in",
        "FrontStore.settle_in",
    },
}
"""Sync verbs that do more than run their async twin: they work in the caller's own thread, or on a sync connection."""
NO_NOUN = {"each", "found", "made", "said", "told"}
FIELDS = {"server/api/bulk.py:46 found"}
"""Names that are fields of an answer in JSON."""


def test_a_class_name_is_defined_once_outside_the_stores():
    places: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE)
        if len(name.parts) > 2 and name.parts[0] == "store":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(name))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_root_holds_the_public_face_and_packages_only():
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == LOOSE


def test_no_source_file_is_longer_than_a_reader_can_hold():
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_the_tree_in_contributing_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^[├└]── (\w+(?:\.py|/))\s+(\S.*)$", text, re.MULTILINE)
    packages = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert sorted(name for name, _ in drawn) == sorted(packages | modules)
    assert all(purpose for _, purpose in drawn)


def test_a_sync_verb_is_made_from_its_async_twin():
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE)
        if name.parts[0] == "store":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                twins = {f"a{each.name}": each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                verbs = {each.name for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
                found[name.as_posix()] |= {f"{node.name}.{twins[verb]}" for verb in verbs & twins.keys()}
    assert {name: pairs for name, pairs in found.items() if pairs} == WRITTEN_OUT


def test_a_variable_says_what_it_holds():
    """A variable, an argument or an attribute is a noun: `job` or `rows`, because `found` does not say what was found."""
    unclear: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.Name(id=name, ctx=ast.Store())
                    | ast.arg(arg=name)
                    | ast.Attribute(attr=name, ctx=ast.Store())
                    | ast.MatchAs(name=str(name))
                    | ast.MatchStar(name=str(name))
                    | ast.ExceptHandler(name=str(name))
                ) if name.strip("_") in NO_NOUN:
                    unclear.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
                case _:
                    pass
    assert set(unclear) == FIELDS


def test_sentences_name_the_component_that_acts():
    """`nobody` as the name of a Unix user is allowed."""
    files = [path for folder in ("src", "docs", "examples") for path in (ROOT / folder).rglob("*")]
    unnamed: list[str] = []
    for path in (*files, *ROOT.glob("*.md")):
        if not path.is_file() or path.suffix not in PROSE or "__pycache__" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if NOT_A_COMPONENT.search(UNIX_USER.sub("", line)):
                unnamed.append(f"{path.relative_to(ROOT)}:{number}")
    assert unnamed == []
