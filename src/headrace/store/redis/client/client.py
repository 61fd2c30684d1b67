"""Scripts on queues: every verb calls the servers through one `Client`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from headrace.errors import OutcomeUnknown, StoreError
from headrace.store.redis.client import scripts
from headrace.store.redis.client.cluster import ClusterWire
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.rounds import Round
from headrace.store.redis.client.scripts import Script
from headrace.store.redis.client.sentinel import SentinelWire
from headrace.store.redis.client.url import Address
from headrace.store.redis.client.wire import Asked, Wire
from headrace.store.redis.keys import Keys

STEP: Final = 500
"""Jobs that one script moves at most: while a script runs, the server answers no other call."""

_SURVEYED: Final = 250
"""Questions to queues that one script of a survey answers."""

_TRACE: Final = "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])"
"""A write to a key that never exists. A full server accepts it because it begins with a command that frees memory."""

_T = TypeVar("_T")


def chunks(items: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def pairs(words: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Names and values that a server answers one after the other, as for HGETALL."""
    return zip(words[::2], words[1::2], strict=True)


def make_wire(address: Address) -> Wire:
    """The way to the servers that a URL names."""
    if address.kind == "cluster":
        return ClusterWire(address)
    return SentinelWire(address) if address.kind == "sentinel" else Wire(address)


class Surveyed(NamedTuple):
    """The answers of queues to one question."""

    answers: dict[str, Reply]
    """The answers by queue. A queue that has no answer to the question is left out."""
    silent: StoreError | None
    """Why a node of a cluster did not answer."""


class Client:
    """Calls scripts by the name of a queue. `wire` takes commands by key, `keys` makes the names of keys."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wire = make_wire(address)
        self.keys = Keys(address.prefix, self.wire.clustered)

    async def run(self, script: Script, queue: str, *args: Any) -> Reply:
        """Run a script that may be repeated: the client repeats it when the answer is lost."""
        return await self.wire.run(script, self.keys.of(queue), *args)

    async def run_each(self, script: Script, queues: Sequence[str], *args: Any) -> list[Reply]:
        """Run a script with the same arguments on each of these queues."""
        return await self.wire.run_many(script, [(self.keys.of(queue), args) for queue in queues])

    async def ask_each(self, script: Script, queues: Sequence[str], *args: Any) -> dict[str, Reply]:
        """The answers by queue. A queue whose node does not answer is left out, unless no node answers."""
        return await self.ask_by(script, dict.fromkeys(queues, args))

    async def ask_by(
        self, script: Script, calls: Mapping[str, tuple[Any, ...]], *, within: float | None = None
    ) -> dict[str, Reply]:
        """As `ask_each`, with arguments by queue. `within`: as of `Pool.ask`."""
        asks: list[Asked] = []
        for queue, args in calls.items():
            keys = self.keys.of(queue)
            asks.append((keys[0], [("EVALSHA", script.sha, len(keys), *keys, *args)]))
        answers = await self.wire.ask_each(asks, script, within=within)
        heard = zip(calls, answers, strict=True)
        return {queue: answer[0] for queue, answer in heard if not isinstance(answer, StoreError)}

    def round(self) -> Round:
        return Round(self.wire, self.keys)

    async def survey(self, queues: Sequence[str], question: str, *words: Any) -> Surveyed:
        """Ask many queues one question (see `survey.lua`): a few scripts on one server, one trip per node of a cluster."""
        size = 1 if self.keys.clustered else max(1, _SURVEYED // max(1, len(words)))
        some = list(chunks(queues, size))
        asks: list[Asked] = []
        for names in some:
            keys = self.keys.of(*names)
            asks.append((keys[0], [("EVALSHA", scripts.SURVEY.sha, len(keys), *keys, question, *words)]))
        answers: dict[str, Reply] = {}
        silent: StoreError | None = None
        for names, answer in zip(some, await self.wire.ask_each(asks, scripts.SURVEY), strict=True):
            if isinstance(answer, StoreError):
                silent = answer
            else:
                answers.update((names[int(number)], reply) for number, reply in answer[0])
        return Surveyed(answers, silent)

    async def confirmed(self, key: str) -> None:
        """Wait until as many replicas as the URL asks for have what was written."""
        wanted = self.address.replicas
        if not wanted:
            return
        # WAIT counts what its own connection wrote. The write may have gone over another connection, and a repeated call
        # may have written nothing. So the client sends a write before WAIT that follows all others and leaves nothing.
        [_, got] = await self.wire.command_many([("EVAL", _TRACE, 1, key), ("WAIT", wanted, 1000)], key)
        if got < wanted:
            raise OutcomeUnknown(
                f"stored, but only {got} of {wanted} replicas confirmed it within 1 s: it may be lost in a failover; ask again"
            )
