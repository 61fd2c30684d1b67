"""Steps: finished ones go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final
from uuid import UUID

import msgspec

from headrace.model.job import JobId
from headrace.model.lease import Token
from headrace.model.step import Step
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, chunks
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.records import text_bytes

_AT_ONCE: Final = 20
"""Steps that one script takes, a few megabytes at most."""
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
                for some in chunks(steps, _AT_ONCE):
                    words = [word for position, step in some for word in (position, *_step_bytes(step))]
                    answer = await self._client.run(scripts.ADD_STEPS, queue, token.hex, *words)
                    if answer == -1:
                        break
                    refused -= {position for position, _ in some}.difference(answer)
        round.end(needs_all=bool(refused))
        return refused

    async def read_steps(self, id: JobId) -> list[Step]:
        rows: list[bytes] = []

        async def read(queue: str, some: list[UUID]) -> Collection[UUID]:
            answer: Reply = await self._client.run(scripts.READ_STEPS, queue, id.bytes)
            if answer is None:
                return ()
            rows.extend(answer)
            return some

        await self._locator.ask([id], read)
        return [_step_of(row[_NUMBER.size :]) for row in sorted(rows, key=lambda row: row[: _NUMBER.size])]


def _step_bytes(step: Step) -> tuple[bytes, bytes]:
    """Its name and number, and the whole step, as `steps/add.lua` takes them."""
    name = text_bytes(step.name).decode()
    return _encode((name, step.number)), _encode((name, step.number, step.digest, step.value, to_us(step.at)))


def _step_of(data: bytes) -> Step:
    name, number, digest, value, at = _decode(data)
    return Step(name, number, digest, value, from_us(at))
