"""What every producer in Python does: it reads one order per line and answers each with one line of JSON.

An order is `{"do": "single", "count": n}`, `{"do": "paced", "gaps": [seconds…]}` or
`{"do": "bulk", "count": n, "size": bytes, "fails": bool}`. Each also has a `number`, by which the jobs of one order are told from
those of others. `once` is for scripts that enqueue one job and end.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from typing import Any

SMALL = 100
"""Bytes of the text that a job carries, except in the rows with payloads."""
CALL = 1000
"""Jobs in one call of a bulk enqueue."""
LONG = 60.0
"""Seconds for which a script that is to be interrupted goes on."""


def text(order: dict[str, Any], number: int = 0) -> str:
    """The argument of a job, which `body` reads: when its enqueue began, on the clock that all processes share; the number of the
    order; how many of its jobs are reported as one; the job's own number; and digits that hardly compress."""
    size = order.get("size", SMALL)
    head = f"{time.monotonic_ns()}:{order['number']}:{order.get('every', 1)}:{number}:"
    return head + _digits(size)[: size - len(head)]


@cache
def _digits(size: int) -> str:
    return "".join(random.choices("0123456789abcdef", k=size))


def serve(
    enqueue: Callable[[str], object],
    bulk: Callable[[Sequence[str]], object],
    failing: Callable[[Sequence[str]], object] | None = None,
) -> None:
    """Carry out orders with calls that block. `failing` enqueues jobs that fail once."""

    _answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "single":
            _answer({"ms": [_timed(enqueue, order) for _ in range(order["count"])]})
        elif order["do"] == "paced":
            for began, gap in _paces(order["gaps"]):
                time.sleep(max(0.0, began + gap - time.monotonic()))
                enqueue(text(order))
            _answer({})
        else:
            calls = _calls(order)
            act = failing if order.get("fails") else bulk
            assert act is not None
            start = time.monotonic()
            for call in calls:
                act(call)
            _answer({"s": time.monotonic() - start})


async def aserve(
    enqueue: Callable[[str], Awaitable[object]],
    bulk: Callable[[Sequence[str]], Awaitable[object]],
    failing: Callable[[Sequence[str]], Awaitable[object]] | None = None,
) -> None:
    """Carry out orders with coroutines."""
    _answer({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if order["do"] == "single":
            _answer({"ms": [await _atimed(enqueue, order) for _ in range(order["count"])]})
        elif order["do"] == "paced":
            for began, gap in _paces(order["gaps"]):
                await asyncio.sleep(max(0.0, began + gap - time.monotonic()))
                await enqueue(text(order))
            _answer({})
        else:
            calls = _calls(order)
            act = failing if order.get("fails") else bulk
            assert act is not None
            start = time.monotonic()
            for call in calls:
                await act(call)
            _answer({"s": time.monotonic() - start})


def once(enqueue: Callable[[str], object], words: Sequence[str]) -> None:
    """Enqueue one job and end. `words`: the number of the order, and whether to go on until it is interrupted."""
    said = text({"number": int(words[0])})
    enqueue(said)
    _enqueued(said)
    if words[1:]:
        time.sleep(LONG)


async def aonce(enqueue: Callable[[str], Awaitable[object]], words: Sequence[str]) -> None:
    """The same with a coroutine."""
    said = text({"number": int(words[0])})
    await enqueue(said)
    _enqueued(said)
    if words[1:]:
        await asyncio.sleep(LONG)


def _enqueued(said: str) -> None:
    """Say when the call began, and that it has its answer."""
    _answer({"began": int(said.split(":", 1)[0]), "answered": time.monotonic_ns()})


def _calls(order: dict[str, Any]) -> list[list[str]]:
    """The texts of each call, made before the time is taken."""
    numbers = range(order["count"])
    return [[text(order, number) for number in numbers[first : first + CALL]] for first in numbers[::CALL]]


def _paces(gaps: Sequence[float]) -> Iterator[tuple[float, float]]:
    """The start, and when each job is due after it: a producer that is late does not shift the jobs that follow."""
    began, due = time.monotonic(), 0.0
    for gap in gaps:
        due += gap
        yield began, due


def _timed(enqueue: Callable[[str], object], order: dict[str, Any]) -> float:
    said = text(order)
    began = time.perf_counter()
    enqueue(said)
    return 1000 * (time.perf_counter() - began)


async def _atimed(enqueue: Callable[[str], Awaitable[object]], order: dict[str, Any]) -> float:
    said = text(order)
    began = time.perf_counter()
    await enqueue(said)
    return 1000 * (time.perf_counter() - began)


def _answer(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)
