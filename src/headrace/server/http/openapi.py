"""`/openapi.json`: the OpenAPI 3.1 document, made from the same endpoints and types that serve the calls."""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
import sys
import threading
import typing
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import msgspec
from starlette.responses import Response

from headrace.server.events.feed import MEDIA as EVENTS
from headrace.server.http import problems
from headrace.server.http.call import Answer, Call, encode
from headrace.server.http.endpoint import Endpoint
from headrace.server.http.problems import ProblemDocument
from headrace.server.sessions import COOKIE

_COMMON = ((414, "uri_too_long"), (431, "headers_too_large"), (500, "internal"), (503, "store_unavailable"))
_WRITES = ((507, "store_full"),)
_KNOWN = ((401, "unauthorized"), (403, "missing_scope"), (403, "csrf"), (429, "too_many_failures"))
_TAKES_BODY = (
    (400, "malformed_json"),
    (400, "json_too_deep"),
    (400, "invalid_utf8"),
    (400, "non_finite_number"),
    (408, "request_timeout"),
    (413, "body_too_large"),
    (415, "content_type_not_allowed"),
    (415, "content_encoding_not_allowed"),
    (422, "unknown_field"),
    (422, "invalid_field"),
    (422, "invalid_unicode"),
)
_TAKES_QUERY = ((422, "invalid_parameter"), (422, "unknown_parameter"), (422, "invalid_sort"))
_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"


def problems_of(endpoint: Endpoint) -> dict[int, list[str]]:
    """The codes that this endpoint may answer, by status."""
    codes: dict[int, list[str]] = {}
    parts = [*_COMMON, *endpoint.problems, (422, "unknown_parameter")]
    if endpoint.scope is not None:
        parts += _KNOWN
    if endpoint.method != "GET":
        parts += _WRITES
    if endpoint.looks:
        parts.append((429, "too_many_polls"))
    if endpoint.body is not None:
        parts += _TAKES_BODY
    if endpoint.query is not None:
        parts += _TAKES_QUERY
    for status, code in parts:
        codes.setdefault(status, [])
        if code not in codes[status]:
            codes[status].append(code)
    return dict(sorted(codes.items()))


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    known = list(endpoints)
    types: list[Any] = [ProblemDocument]
    for endpoint in known:
        types += [kind for kind in (endpoint.body, endpoint.query, *endpoint.answers.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    _describe(types, components)
    shapes = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in known:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, shapes, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": _version(),
            "description": "A durable task queue over HTTP. Errors are RFC 9457 problem documents with a stable `code`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Made by `headrace tokens create`."},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": COOKIE,
                    "description": "Set by `POST /v1/session`, for browsers.",
                },
            },
        },
    }


def _describe(types: Iterable[Any], components: Mapping[str, Any]) -> None:
    """Put the docstrings of fields into the schemas, because msgspec reads those of classes only."""
    for kind in _structs(types):
        shape = components.get(kind.__name__)
        for name, text in _field_docs(kind).items():
            if shape is not None and name in shape.get("properties", {}):
                shape["properties"][name].setdefault("description", text)


def _structs(types: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Every Struct in these types, at any depth."""
    structs: set[type[msgspec.Struct]] = set()
    open_ = list(types)
    while open_:
        kind = open_.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in structs:
                structs.add(kind)
                open_ += [field.type for field in msgspec.structs.fields(kind)]
        else:
            open_ += typing.get_args(kind)
    return structs


def _field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        docs |= vars(base).get("field_docs", {})
        for before, after in pairwise(_bodies(base.__module__).get(base.__name__, ())):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
                case _:
                    pass
    return docs


@functools.cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    """The bodies of a module's classes. Each module is parsed once, because parsing takes the most time."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}  # A build without sources has no descriptions.
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _key(kind: Any) -> str:
    return str(kind) if not isinstance(kind, type) else f"{kind.__module__}.{kind.__qualname__}"


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0"


def _operation(endpoint: Endpoint, shapes: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    words = [part.strip("{}") for part in endpoint.path.split("/") if part]
    operation: dict[str, Any] = {
        "operationId": "_".join(
            [endpoint.method.lower(), *(word.replace("-", "_").replace(".", "_") for word in words or ["root"])]
        ),
        "summary": endpoint.does,
        "tags": [next((word for word in words if word != "v1"), "docs")],
        "responses": _responses(endpoint, shapes),
    }
    if endpoint.scope is not None:
        operation["security"] = [{"token": []}, {"session": []}]
        operation["x-scope"] = str(endpoint.scope)
    parameters = [_path_parameter(name) for name in _PARAMETER.findall(endpoint.path)]
    if endpoint.query is not None:
        parameters += _query_parameters(shapes[_key(endpoint.query)], components)
    if endpoint.body is not None and any(code == "idempotency_conflict" for _, code in endpoint.problems):
        text = "The same as the field `key`. In a batch, a job without a key of its own gets it with `#` and its place."
        parameters.append(_header("Idempotency-Key", text, {"minLength": 1, "maxLength": 256}))
        text = (
            "The same as the field `trace`, for each job without one. The server ignores a text that is no traceparent."
        )
        parameters.append(_header("traceparent", text, {}))
    if endpoint.media == EVENTS:
        text = "The id of the last event that was received. The stream begins with the events after it."
        parameters.append(_header("Last-Event-ID", text, {"maxLength": 128}))
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        needed = bool(_resolved(shapes[_key(endpoint.body)], components).get("required"))
        operation["requestBody"] = {
            "required": needed,
            "content": {"application/json": {"schema": shapes[_key(endpoint.body)]}},
        }
    return operation


def _header(name: str, description: str, bounds: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string", **bounds}}


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "uuid"} if name == "id" else {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _resolved(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else components[reference.rpartition("/")[2]]


def _query_parameters(schema: Mapping[str, Any], components: Mapping[str, Any]) -> list[dict[str, Any]]:
    shape = _resolved(schema, components)
    needed = set(shape.get("required", ()))
    return [
        {
            "name": name,
            "in": "query",
            "required": name in needed,
            "description": part.get("description", ""),
            "schema": _without_null({key: value for key, value in part.items() if key != "description"}),
        }
        for name, part in shape.get("properties", {}).items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query string has no null, so an absent parameter is left out."""
    if "anyOf" not in schema:
        return schema
    options = [option for option in schema["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in {"anyOf", "default"}}
    return {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options}


def _responses(endpoint: Endpoint, shapes: Mapping[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in endpoint.answers.items():
        responses[str(status)] = {"description": "As asked." if kind is not None else "Done."}
        if kind is not None:
            responses[str(status)]["content"] = {endpoint.media: {"schema": shapes[_key(kind)]}}
    for status, codes in problems_of(endpoint).items():
        responses[str(status)] = {
            "description": ", ".join(f"`{code}`" for code in codes),
            "content": {problems.MEDIA: {"schema": shapes[_key(ProblemDocument)]}},
        }
    return responses


class _KeptDocument:
    """The document, made once per process at the first request."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self._making = threading.Lock()

    def get(self) -> bytes:
        from headrace.server.api.resources import ENDPOINTS as EVERY

        with self._making:
            if self.data is None:
                self.data = encode(document(EVERY))
                _bodies.cache_clear()
            return self.data


_kept = _KeptDocument()
encoded = _kept.get
"""The document as it is sent."""


async def show(call: Call) -> Response:  # noqa: ARG001 - every handler takes a call
    """GET /openapi.json"""
    # Making it takes a while, so it runs in a thread and delays no claim.
    data = _kept.data
    return Answer(await asyncio.to_thread(encoded) if data is None else data, 200, None)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/openapi.json",
        scope=None,
        does="Describe this API as an OpenAPI document.",
        handler=show,
        answers={200: dict[str, Any]},
    ),
)
