"""What every producer in Python does: it reads one order per line and answers each with one line of JSON.

An order is `{"do": "single", "count": n}`, `{"do": "paced", "gaps": [seconds…]}` or `{"do": "bulk", "count": n, "size": bytes}`.
Each also has a `number`, by which the jobs of one order are told from those of others.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

SMALL = 100
"""Bytes of the text that a job carries, except in the row with large payloads."""


def text(order: dict[str, Any]) -> str:
    """The argument of a job: when its enqueue began, on the clock that all processes share, and the order's number."""
    return f"{time.monotonic_ns()}:{order['number']}:".ljust(order.get("size", SMALL), "x")


def serve(enqueue: Callable[[str], object], bulk: Callable[[Sequence[str]], object]) -> None:
    """Carry out orders with calls that block."""

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
            bulk([text(order) for _ in range(order["count"])])
            _answer({})


async def aserve(
    enqueue: Callable[[str], Awaitable[object]], bulk: Callable[[Sequence[str]], Awaitable[object]]
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
            await bulk([text(order) for _ in range(order["count"])])
            _answer({})


def _paces(gaps: Sequence[float]) -> list[tuple[float, float]]:
    """The start, and when each job is due after it: a producer that is late does not shift the jobs that follow."""
    began, due = time.monotonic(), 0.0
    paces: list[tuple[float, float]] = []
    for gap in gaps:
        due += gap
        paces.append((began, due))
    return paces


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
