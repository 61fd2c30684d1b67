"""The cases of test_openapi.py, one test per operation of the document.

They run in a process of their own. The library makes all requests when the tests are collected, which takes seconds, and every
process of a parallel run collects all tests.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
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

from headrace.server.http import openapi
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
