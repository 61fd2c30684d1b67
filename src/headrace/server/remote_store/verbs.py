"""`/v1/store/{verb}`: the verbs of the http store as endpoints. The bodies are MessagePack, typed by `store/http/wire.py`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from headrace.errors import GroupOver, IdempotencyConflict, QueueFull
from headrace.server.http import boundary
from headrace.server.http.call import Call
from headrace.server.http.endpoint import Endpoint
from headrace.server.http.problems import Problem
from headrace.server.remote_store.calls import Calls
from headrace.server.remote_store.rules import RULES
from headrace.store.http import wire


async def _answer(verb: wire.Verb, call: Call) -> Response:
    """POST /v1/store/{verb}"""
    if call.request.headers.get("content-type") != wire.MEDIA:
        raise Problem(415, "content_type_not_allowed", f"send MessagePack with the header Content-Type: {wire.MEDIA}")
    if (rule := RULES[verb.name]).counts(call.principal):
        call.service.figures.count(call.request, call.principal, rule.looks)
    settings = call.service.settings
    if verb.large:
        settings = replace(settings, max_body=wire.MAX_BODY)
    body = await boundary.read(call.request.receive, settings)
    method: Callable[..., Coroutine[Any, Any, Any]] = getattr(Calls(call.service, call.principal), verb.name)
    try:
        arguments = wire.read_arguments(verb, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        raise Problem(422, "invalid_value", f"these are not arguments of {verb.name}: see store/http/wire.py") from None
    try:
        answer = await (call.while_there(method(*arguments)) if rule.long else method(*arguments))
    except IdempotencyConflict as error:
        raise Problem(
            409, error.code, str(error), task=error.task, key=error.key, existing=str(error.existing)
        ) from None
    except GroupOver as error:
        raise Problem(409, error.code, str(error), group=str(error.group)) from None
    except QueueFull as error:
        raise Problem(
            429, error.code, str(error), headers={"Retry-After": "1"}, queue=error.queue, max_length=error.max_length
        ) from None
    except (ValueError, OverflowError) as error:
        raise Problem(422, "invalid_value", f"{verb.name}: {error}") from None
    return Response(wire.encode(answer), media_type=wire.MEDIA)


def _endpoint(verb: wire.Verb) -> Endpoint:
    rule = RULES[verb.name]
    own = (
        (
            (409, "idempotency_conflict"),
            (409, "unique_conflict"),
            (409, "group_over"),
            (422, "unsafe_callback_url"),
            (429, "queue_full"),
            (429, "too_many_queues"),
        )
        if verb.name == "enqueue"
        else ((429, "too_many_polls"),)
        if rule.looks
        else ()
    )
    return Endpoint(
        method="POST",
        path=f"/v1/store/{verb.name}",
        scope=rule.scope,
        also=rule.also,
        does=f"For the http store: {rule.does[0].lower()}{rule.does[1:]}",
        handler=partial(_answer, verb),
        answers={200: bytes},
        problems=(
            (404, "not_found"),
            (413, "body_too_large"),
            (415, "content_type_not_allowed"),
            (422, "invalid_value"),
            *own,
        ),
        media=wire.MEDIA,
    )


ENDPOINTS = tuple(_endpoint(verb) for verb in wire.VERBS.values())
