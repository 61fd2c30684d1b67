"""`/v1/tasks`: the tasks that the app knows, with their parameters as JSON Schema."""

from __future__ import annotations

import functools
import inspect
import typing
from pathlib import PurePath
from typing import Any

import msgspec
from starlette.responses import Response

from headrace.model import duration
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.task.codec.hooks import is_model_class
from headrace.task.task import Task


class TaskView(msgspec.Struct, kw_only=True):
    """A task."""

    name: str
    does: str
    """The first line of its docstring."""
    queue: str
    priority: int
    timeout: str | None
    max_attempts: int
    limits: list[str]
    parameters: dict[str, Any]
    """JSON Schema of an object with the arguments by name."""
    positional: list[str]
    """The names of positional arguments, in their order."""
    returns: dict[str, Any]
    """JSON Schema of its result."""


class TaskList(msgspec.Struct):
    """Every task, by name."""

    items: list[TaskView]
    next: None = None
    """The list is whole, so there is no next page."""


async def all_of(call: Call) -> Response:
    """GET /v1/tasks"""
    known = call.service.app.tasks
    tenant = call.principal.tenant
    seen = [known[name] for name in sorted(known) if call.principal.sees(known[name].options.queue, tenant)]
    return answer(TaskList([describe(task) for task in seen]))


@functools.lru_cache(maxsize=4096)
def describe(task: Task[..., Any]) -> TaskView:
    """The description of a task for programs elsewhere."""
    options = task.options
    return TaskView(
        name=task.name,
        does=(inspect.getdoc(task.function) or "").partition("\n")[0],
        queue=options.queue,
        priority=options.priority,
        timeout=None if options.timeout is None else duration.show(options.timeout),
        max_attempts=options.retry.max_attempts,
        limits=[limit.name for limit in options.limits],
        **_signature(task),
    )


def _signature(task: Task[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(task.function, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    positional: list[str] = []
    more: Any = False
    definitions: dict[str, Any] = {}
    for parameter in inspect.signature(task.function).parameters.values():
        schema = _schema(hints.get(parameter.name, Any), definitions)
        if parameter.kind is parameter.VAR_KEYWORD:
            more = schema
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(parameter.name)
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    returns = _schema(hints.get("return", Any), definitions)
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": more}
    if definitions:
        parameters["$defs"] = definitions
        returns = {**returns, "$defs": definitions}
    return {"parameters": parameters, "positional": positional, "returns": returns}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an annotation. {}: any value."""
    try:
        (schema,), components = msgspec.json.schema_components([kind], schema_hook=_hook, ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError, RecursionError):
        return {}
    definitions.update(components)
    return schema


def _hook(kind: Any) -> dict[str, Any]:
    """Types that msgspec does not know."""
    if is_model_class(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    return {"type": "string"} if isinstance(kind, type) and issubclass(kind, PurePath) else {}


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/tasks",
        scope=Scope.ENQUEUE,
        also=(Scope.READ,),
        does="List the tasks that can be enqueued, with their parameters as JSON Schema.",
        handler=all_of,
        answers={200: TaskList},
    ),
)
