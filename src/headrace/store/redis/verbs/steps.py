"""Steps: finished ones go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Answered, SignalWait, Step
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.records import text_bytes

_AT_ONCE: Final = 200
"""Steps that one script takes."""
_LARGE: Final = 1_000_000
"""Bytes of steps that one script takes. A larger step goes by itself."""
_WORDS: Final = 3
"""Arguments of a step."""
_NUMBER: Final = Struct(">I")
"""How many steps of the job were there before."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, bytes, bytes | None, int]).decode


class Steps:
    """See the contract."""

    def __init__(self, client: Client, leases: LeaseHomes, locator: JobLocator) -> None:
        self._client, self._leases, self._locator = client, leases, locator

    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        positions = frozenset(position for position, _ in steps)
        refused = positions
        round = self._client.round()
        for queue in await self._leases.of(token) if steps else ():
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                if len(steps) == 1 and (stored := await self._add_one(queue, token, *steps[0])) is not None:
                    refused -= positions if stored else set()
                    continue
                for words in _parts(steps):
                    answer = await self._client.run(scripts.ADD_STEPS, queue, token.hex, *words)
                    if answer == -1:
                        break
                    refused -= {*words[::_WORDS]}.difference(answer)
        round.end(needs_all=bool(refused))
        return refused

    async def _add_one(self, queue: str, token: Token, position: int, step: Step) -> bool | None:
        """Whether the step is stored. None: the lease is in parts, and the general script must look."""
        answer = await self._client.run(scripts.ADD_STEP, queue, token.hex, position, *_step_bytes(step))
        return None if answer == -1 else answer == 1

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        rows: list[bytes] = []
        if token is not None and (homes := self._leases.known.get(token)) is not None:
            # A job that runs is where its lease is.
            for answer in await self._client.run_each(scripts.READ_OWN_STEPS, homes, id.bytes):
                rows += answer
            return _in_order(rows)

        async def read(queue: str, some: list[UUID]) -> Collection[UUID]:
            answer: Reply = await self._client.run(scripts.READ_STEPS, queue, id.bytes)
            if answer is None:
                return ()
            rows.extend(answer)
            return some

        await self._locator.ask([id], read)
        return _in_order(rows)

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        """On one server, where a script reaches the gate and the journal."""
        words = (token.hex, position, wait.gate.bytes, int(wait.journal), *_step_around(wait.step))
        round = self._client.round()
        reply: Reply = None
        for queue in await self._leases.of(token):
            if reply is not None or await round.passes_over(queue):
                continue
            async with round.asking(queue):
                answer = await self._client.run(scripts.ANSWER_WAIT, queue, *words)
                reply = None if answer == -1 else answer
        round.end(needs_all=reply is None)
        if reply is None:
            return None
        value, stored, rows = reply
        return Answered(value, bool(stored), _in_order(rows))


def _in_order(rows: list[bytes]) -> list[Step]:
    return [_step_of(row[_NUMBER.size :]) for row in sorted(rows, key=lambda row: row[: _NUMBER.size])]


def _parts(steps: Sequence[tuple[int, Step]]) -> Iterator[list[Any]]:
    """The arguments of each script that stores some of these steps."""
    words: list[Any] = []
    size = 0
    for position, step in steps:
        key, whole = _step_bytes(step)
        if words and (size + len(whole) > _LARGE or len(words) == _WORDS * _AT_ONCE):
            yield words
            words, size = [], 0
        words += (position, key, whole)
        size += len(whole)
    if words:
        yield words


def _step_bytes(step: Step) -> tuple[bytes, bytes]:
    """Its name and number, and the whole step, as `steps/add.lua` takes them."""
    name = text_bytes(step.name).decode()
    return _encode((name, step.number)), _encode((name, step.number, step.digest, step.value, to_us(step.at)))


def _step_around(step: Step) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """The same in pieces, as `steps/answer.lua` takes them: the value comes from a gate."""
    key, whole = _step_bytes(step)
    begins, ends = _encode(step.value), _encode(to_us(step.at))
    number = _encode(step.number)
    head = whole[: -len(begins) - len(ends)]
    return key[: -len(number)], key, head, step.value or b"", ends


def _step_of(data: bytes) -> Step:
    name, number, digest, value, at = _decode(data)
    return Step(name, number, digest, value, from_us(at))
