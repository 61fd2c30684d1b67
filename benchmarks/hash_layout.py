"""Jobs on Redis in the layout of most queues there: a hash per job, ready jobs and leases in sorted sets.

Only the verbs of the benchmark's producer and worker use this layout: enqueue, claim, heartbeat, settle, wait. All
other verbs are those of the Redis store and find nothing to do. Each verb is one script that loops over the jobs of its
batch, fenced by the token in each job's hash: the same promises, the same batches, the same worker around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from headrace.app import Headrace
from headrace.model.job import Batch, Claimed
from headrace.model.lease import Ask, Lease, Presence, Pulse, Token
from headrace.model.outcome import Finish, Settlement
from headrace.model.records import Enqueued
from headrace.store.contract import Store
from headrace.store.redis.arguments import microseconds
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.element import from_us
from headrace.store.redis.store import RedisStore

PREFIX: Final = "headrace_bench:h:"

# KEYS in all of them: 1 prefix of a job's hash, 2 ready ZSET by number of arrival, 3 leases ZSET by expiry,
# 4 the marker that waiting workers block on, 5 the number of arrivals.

_ENQUEUE: Final = """
-- ARGV: now, then id, task, payload of each job
if redis.call('EXISTS', KEYS[1] .. ARGV[2]) == 1 then return 0 end
local jobs = (#ARGV - 1) / 3
local number, ready = redis.call('INCRBY', KEYS[5], jobs) - jobs, {}
for i = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[1] .. ARGV[i], 'task', ARGV[i + 1], 'payload', ARGV[i + 2], 'state', 'ready', 'attempt', 0,
    'enqueued_at', ARGV[1])
  number = number + 1
  ready[#ready + 1] = number
  ready[#ready + 1] = ARGV[i]
end
redis.call('ZADD', KEYS[2], unpack(ready))
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], 1) end
return jobs
"""

_CLAIM: Final = """
-- ARGV: limit, token, expiry; answers id and fields of each job as they were
local popped, answer, leases = redis.call('ZPOPMIN', KEYS[2], ARGV[1]), {}, {}
for i = 1, #popped, 2 do
  local id, key = popped[i], KEYS[1] .. popped[i]
  local fields, attempt = redis.call('HGETALL', key), 0
  for f = 1, #fields, 2 do if fields[f] == 'attempt' then attempt = fields[f + 1] + 1 break end end
  redis.call('HSET', key, 'state', 'running', 'attempt', attempt, 'token', ARGV[2])
  leases[#leases + 1] = ARGV[3]
  leases[#leases + 1] = id
  answer[#answer + 1] = id
  answer[#answer + 1] = fields
end
if #leases > 0 then redis.call('ZADD', KEYS[3], unpack(leases)) end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[4])
elseif redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('RPUSH', KEYS[4], 1)
end
return answer
"""

_HEARTBEAT: Final = """
-- ARGV: token, expiry, ids; answers how many are still held
local held, leases = 0, {}
for i = 3, #ARGV do
  if redis.call('HGET', KEYS[1] .. ARGV[i], 'token') == ARGV[1] then
    held = held + 1
    leases[#leases + 1] = ARGV[2]
    leases[#leases + 1] = ARGV[i]
  end
end
if held > 0 then redis.call('ZADD', KEYS[3], 'XX', unpack(leases)) end
return held
"""

_SETTLE: Final = """
-- ARGV: token, now, seconds to keep, then id, state, result of each job; answers the numbers of those refused, from 0
local refused, leases = {}, {}
for i = 4, #ARGV, 3 do
  local id, key, state = ARGV[i], KEYS[1] .. ARGV[i], ARGV[i + 1]
  if redis.call('HGET', key, 'token') ~= ARGV[1] then
    refused[#refused + 1] = (i - 4) / 3
  elseif state == 'ready' then
    redis.call('HSET', key, 'state', state, 'token', '')
    redis.call('ZADD', KEYS[2], 0, id)
    leases[#leases + 1] = id
  else
    redis.call('HSET', key, 'state', state, 'token', '', 'result', ARGV[i + 2], 'finished_at', ARGV[2])
    redis.call('EXPIRE', key, ARGV[3])
    leases[#leases + 1] = id
  end
end
if #leases > 0 then redis.call('ZREM', KEYS[3], unpack(leases)) end
return refused
"""


def _script(verb: str, text: str) -> Script:
    source = text.encode()
    return Script(verb, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


ENQUEUE, CLAIM = _script("enqueue", _ENQUEUE), _script("claim", _CLAIM)
HEARTBEAT, SETTLE = _script("heartbeat", _HEARTBEAT), _script("settle", _SETTLE)

KEEP: Final = 86_400
"""Seconds that a finished job is kept, as in the Redis store."""


class HashLayoutStore(RedisStore):
    """The Redis store with the verbs of `HashLayout`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.layout = layout = HashLayout(self)
        self.enqueue = layout.enqueue
        self.claim = layout.claim
        self.heartbeat = layout.heartbeat
        self.settle = layout.settle
        self.wait = layout.wait
        self.wait_to_claim = layout.wait_to_claim


class HashLayout:
    """A hash per job."""

    def __init__(self, store: RedisStore) -> None:
        self._wire, self._time, self._presence = store.client.wire, store.time, store.heartbeat
        self.held: dict[Token, tuple[str, list[bytes]]] = {}
        """The queue and the ids of each lease that was claimed here."""

    async def enqueue(self, batch: Batch) -> Enqueued:
        now, prefix = await self._time.now_us(), batch.id.bytes[:14]
        words: list[Any] = [now]
        for ord, job in enumerate(batch.jobs):
            words += (prefix + ord.to_bytes(2, "big"), job.task, job.payload)
        if batch.jobs:
            await self._wire.run(ENQUEUE, _keys(batch.jobs[0].lane.queue), *words)
        return Enqueued({})

    async def claim(self, ask: Ask) -> Lease | None:
        [queue] = ask.queues
        expiry = await self._time.now_us() + microseconds(ask.ttl)
        answer = await self._wire.run(CLAIM, _keys(queue), ask.limit, ask.token.hex, expiry)
        if not answer:
            return None
        ids: list[bytes] = answer[::2]
        self.held[ask.token] = queue, ids
        batches: dict[bytes, UUID] = {}
        jobs: list[Claimed] = []
        for id, pairs in zip(ids, answer[1::2], strict=True):
            fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
            prefix = id[:14]
            batch = batches.get(prefix)
            if batch is None:
                batch = batches[prefix] = UUID(bytes=prefix + b"\0\0")
            jobs.append(
                Claimed(
                    batch,
                    int.from_bytes(id[14:], "big"),
                    int(fields[b"attempt"]) + 1,
                    0,
                    0,
                    fields[b"task"].decode(),
                    fields[b"payload"],
                    None,
                    queue,
                    0,
                    "",
                    from_us(int(fields[b"enqueued_at"])),
                )
            )
        return Lease(ask.token, jobs)

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        lost = set((await self._presence((), ttl, presence)).lost)
        expiry = await self._time.now_us() + microseconds(ttl)
        for token in tokens:
            queue, ids = self.held.get(token, ("", []))
            if not ids or not await self._wire.run(HEARTBEAT, _keys(queue), token.hex, expiry, *ids):
                lost.add(token)
        return Pulse(frozenset(lost), ())

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        queue, ids = self.held[token]
        words: list[Any] = [token.hex, await self._time.now_us(), KEEP]
        for position, settlement in settlements:
            if isinstance(settlement, Finish):
                words += (ids[position], settlement.state.value, settlement.result or b"")
            else:
                words += (ids[position], "ready", b"")
        refused: list[int] = await self._wire.run(SETTLE, _keys(queue), *words)
        return frozenset(settlements[number][0] for number in refused)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return bool(await self._wire.wait([_keys(queue)[3] for queue in queues], timeout))

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        return await self.wait(ask.queues, timeout)


def _keys(queue: str) -> list[str]:
    base = f"{PREFIX}{{{queue}}}:"
    return [base + name for name in ("j:", "ready", "leases", "w", "n")]


class HashLayoutApp(Headrace):
    """The same app on that layout."""

    def connect(self) -> Store:
        return HashLayoutStore(self.settings.store_url)
