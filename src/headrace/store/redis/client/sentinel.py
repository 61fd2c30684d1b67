"""Sentinel: the sentinels name the primary."""

from __future__ import annotations

from dataclasses import replace

from headrace.store.redis.client.connection import Pool
from headrace.store.redis.client.faults import Cut, Refused
from headrace.store.redis.client.url import Address
from headrace.store.redis.client.wire import Wire


class SentinelWire(Wire):
    """Asks the sentinels which server is the primary."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: tuple[str, int] | None = None

    async def pool_of(self, key: str) -> Pool:
        del key
        if self._primary is None:
            self._primary = await self._discover()
        return self.pool(*self._primary)

    async def look_again(self) -> None:
        self._primary = None

    async def _discover(self) -> tuple[str, int]:
        problem = "no sentinel answers"
        for host, port in self.address.hosts:
            try:
                answer = await self._ask_sentinel(host, port)
            except (Cut, Refused) as error:
                problem = f"{host}:{port}: {error}"
                continue
            if answer:
                return answer[0].decode(), int(answer[1])
            problem = f"the sentinel at {host}:{port} knows no {self.address.service!r}"
        raise Cut(problem, sent=False)

    async def _ask_sentinel(self, host: str, port: int) -> list[bytes] | None:
        ours = replace(self.address, db=0, username=None, password=self.address.sentinel_password)
        pool = Pool(host, port, ours)
        try:
            [answer] = await pool.ask([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)])
        finally:
            await pool.close()
        if isinstance(answer, Exception):
            raise answer
        primary: list[bytes] | None = answer
        return primary
