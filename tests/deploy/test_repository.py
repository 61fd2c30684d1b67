"""The files of the repository's host: workflows run what exists, forms can be read, and policies link to pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploy.files import ROOT, Document, documents

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [GITHUB / "ISSUE_TEMPLATE" / "bug.yml", GITHUB / "ISSUE_TEMPLATE" / "idea.yml"]
POLICIES = [ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md"]


def workflow(path: Path) -> Document:
    [found] = documents(path)
    return found


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_rights_and_an_end(path: Path) -> None:
    found = workflow(path)
    assert found["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job and job["steps"] for job in found["jobs"].values())


def test_every_change_is_checked_and_tested_on_every_python() -> None:
    job = workflow(GITHUB / "workflows" / "ci.yml")["jobs"]["test"]
    targets = [step["run"].removeprefix("make ") for step in job["steps"] if step.get("run", "").startswith("make ")]
    assert targets == ["check", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project()["classifiers"]))
    tested = job["strategy"]["matrix"]["python"]
    assert set(named) <= set(tested)
    assert f">={tested[0]}" == project()["requires-python"]


def test_ci_installs_the_servers_that_the_tests_start() -> None:
    text = (GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8")
    setup = (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    needed = re.findall(r"missing\+=\((\S+)\)", setup)
    assert needed
    assert [package for package in needed if not re.search(rf"apt-get install .*\b{package}\b", text)] == []


def test_a_release_needs_no_password() -> None:
    path = GITHUB / "workflows" / "release.yml"
    publish = workflow(path)["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert "secrets." not in path.read_text(encoding="utf-8")
    [upload] = [step for step in publish["steps"] if "pypi-publish" in step["uses"]]
    assert upload["with"] == {"attestations": True}


def test_a_release_publishes_its_documentation() -> None:
    docs = workflow(GITHUB / "workflows" / "release.yml")["jobs"]["docs"]
    assert docs["needs"] == "publish"
    assert docs["permissions"] == {"contents": "write"}
    commands = "\n".join(step.get("run", "") for step in docs["steps"])
    assert "make docs\n" in commands
    assert re.search(r"^docs:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "scripts/publish_site.py --site site --into pages\n" in commands


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_ask_something(path: Path) -> None:
    found = workflow(path)
    assert found["name"]
    assert found["description"]
    fields = [each for each in found["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields)
    assert all(each["attributes"]["label"] for each in fields)
    assert any(each.get("validations", {}).get("required") for each in fields)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_policies_link_to_what_exists_and_are_linked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [each for each in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in each]
    assert links
    assert [each for each in links if not (ROOT / each).exists()] == []
    assert f"({path.name})" in (ROOT / "README.md").read_text(encoding="utf-8")
