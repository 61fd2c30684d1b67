"""The OpenAPI document tells the truth: nothing that fits it, or nearly does, is answered in a way it does not name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.server.api.resources import ENDPOINTS
from headrace.server.http import openapi
from headrace.task.job_options import OPTIONS
from server.running import Running, make_app, running

EXAMPLES = 12
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server without tokens."""
    yield from _served()


@pytest.fixture(scope="module")
def closing_address() -> Iterator[str]:
    """A server that is closed as soon as a test makes a token."""
    yield from _served()


def _served() -> Iterator[str]:
    """A server in a thread of its own, told to stop soon: so nothing that waits for news waits long."""
    up = threading.Event()
    found: list[Running] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        async with running(make_app("memory://")) as server:
            made = await server.http.post("/v1/jobs", json={"task": "add", "args": [1]})
            assert made.status_code == 201
            server.service.stop()
            found.append(server)
            loops.append((asyncio.get_running_loop(), stop))
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="server")
    thread.start()
    assert up.wait(60)
    yield found[0].url
    loop, stop = loops[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)


described: Any = schemathesis.openapi.from_dict(json.loads(openapi.encoded()))
every_operation: Any = described.exclude(path="/v1/tokens", method="POST").parametrize()
new_tokens: Any = described.include(path="/v1/tokens", method="POST").parametrize()
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")  # the library's own do
@every_operation
@fuzzed
def test_every_answer_is_documented(case: Any, address: str) -> None:
    _check(case, address)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@new_tokens
@fuzzed
def test_every_answer_about_new_tokens_is_documented(case: Any, closing_address: str) -> None:
    """The first token closes the server, so it is another one."""
    _check(case, closing_address)


def _check(case: Any, address: str) -> None:
    answer = case.call(base_url=address, timeout=60)
    # It is documented, too, and yet must never be.
    assert answer.status_code != 500, answer.text
    case.validate_response(answer, checks=CHECKS)


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
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    for each in ENDPOINTS:
        if each.path.startswith(("/v1/store/", "/docs/", "/dashboard/")):
            continue
        scopes = "open" if each.scope is None else " or ".join(map(str, (each.scope, *each.also)))
        row = f"| `{each.method} {each.path}` | {scopes} | {each.does} |"
        assert row in page, f"docs/reference/http.md lacks: {row}"


PARTS_OF_ONE_THING = {"Explained", "Figures", "JobView", "SessionView"}
"""Answers that hold an array and are not lists: one explanation, the figures of all queues, one job, one caller."""


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
