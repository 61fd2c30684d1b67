"""The OpenAPI document tells the truth: nothing that fits it, or nearly does, is answered in a way it does not name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.server.api.resources import ENDPOINTS
from headrace.server.http import openapi
from headrace.task.job_options import OPTIONS
from server.running import Running

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "openapi_cases.py"


@pytest.mark.timeout(600)  # on the slowest machine
def test_every_answer_is_documented() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ENDPOINTS)} passed" in done.stdout, done.stdout


async def test_the_document_is_made_once_and_beside_the_event_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: list[int] = []
    make = openapi.document

    def noted(endpoints: Any) -> dict[str, Any]:
        makers.append(threading.get_ident())
        return make(endpoints)

    monkeypatch.setattr(openapi, "document", noted)
    monkeypatch.setattr(openapi._kept, "data", None)
    answers = await asyncio.gather(*(server.http.get("/openapi.json") for _ in range(5)))
    again = await server.http.get("/openapi.json")
    assert len({each.content for each in (*answers, again)}) == 1
    [maker] = makers
    assert maker != threading.get_ident()


async def test_the_document_names_every_endpoint(server: Running) -> None:
    document = (await server.http.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(each.method, each.path) for each in ENDPOINTS}
    operations = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(operations)) == len(operations)


def test_endpoints_are_what_they_should_be() -> None:
    for each in ENDPOINTS:
        assert each.does.endswith("."), each.path
        assert each.answers, each.path
        if each.body is not None:
            assert each.body.__struct_config__.forbid_unknown_fields, each.path
        if each.query is not None:
            assert each.query.__struct_config__.forbid_unknown_fields, each.path
        assert each.scope is not None or each.method == "GET", f"{each.path} is open and changes something"
    assert len({(each.method, each.path) for each in ENDPOINTS}) == len(ENDPOINTS)


async def test_methods_that_a_path_does_not_take(server: Running) -> None:
    answer = await server.http.put("/v1/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert answer.json()["code"] == "method_not_allowed"
    assert (await server.http.head("/livez")).status_code == 200
    assert (await server.http.options("/v1/jobs")).status_code == 405


def test_headers_and_a_full_store_are_named() -> None:
    paths = openapi.document(ENDPOINTS)["paths"]

    def headers(path: str, method: str = "get") -> set[str]:
        return {each["name"] for each in paths[path][method].get("parameters", ()) if each["in"] == "header"}

    assert headers("/v1/events") == headers("/v1/jobs/{id}/events") == {"Last-Event-ID"}
    assert headers("/v1/jobs", "post") == headers("/v1/jobs/batch", "post") == {"Idempotency-Key", "traceparent"}
    for methods in paths.values():
        for method, operation in methods.items():
            assert ("507" in operation["responses"]) is (method != "get")


def test_field_descriptions_are_the_docstrings() -> None:
    schemas = openapi.document(ENDPOINTS)["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["queue"]["description"] == OPTIONS["queue"].doc
    assert schemas["ProblemDocument"]["properties"]["code"]["description"] == "Stable, for programs."


def test_the_reference_lists_every_call() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    for each in ENDPOINTS:
        if each.path.startswith(("/v1/store/", "/docs/", "/dashboard/")):
            continue
        scopes = "open" if each.scope is None else " or ".join(map(str, (each.scope, *each.also)))
        row = f"| `{each.method} {each.path}` | {scopes} | {each.does} |"
        assert row in page, f"docs/reference/http.md lacks: {row}"


PARTS_OF_ONE_THING = {"Explained", "Figures", "JobView", "QueueDetailView", "SessionView", "WorkflowGraph"}
"""Answers that hold an array and are not lists: one explanation, the figures of all queues, one job, one queue, one caller, one graph."""


def test_every_list_has_the_same_shape() -> None:
    document = json.loads(openapi.encoded())
    schemas = document["components"]["schemas"]
    lists: set[str] = set()
    for path, methods in document["paths"].items():
        content = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = schemas.get(name, {}).get("properties", {})
        if name not in PARTS_OF_ONE_THING and any(each.get("type") == "array" for each in fields.values()):
            assert {"items", "next"} <= set(fields), path
            lists.add(path)
    assert {"/v1/jobs", "/v1/queues", "/v1/workers", "/v1/pauses", "/v1/limits", "/v1/schedules"} <= lists
    assert {"/v1/audit", "/v1/dead", "/v1/tasks"} <= lists
