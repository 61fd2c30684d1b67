"""The half-open watch: finds calls that wait on a half-open connection.

A router or proxy can stop forwarding without closing a connection. The caller then waits for an answer that cannot come, and
its own time limit is long, because a statement may have to wait for a lock. So the watch asks the server, over a new
connection, whether it works on that call. A call is given up when the server says twice that it does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.store.postgres.driver import TROUBLE, Connection

_DOUBT: Final = 3.0
"""Seconds without an answer after which the server is asked."""
_AGAIN: Final = 1.0
"""Seconds between two questions. An answer that is on its way arrives within them."""
ANSWER: Final = 3.0
"""Seconds for the server to answer a question. Where the whole network is silent, the next try should come soon."""
_ASK: Final = """
select pg_backend_pid() as me, a.pid, a.state_change,
    a.state in ('active', 'fastpath function call', 'disabled') and a.wait_event is distinct from 'ClientRead' as working
from (select) as always left join pg_stat_activity a on a.pid = any($1::int[])
"""
"""Whether sessions may still answer. One that has prepared a statement is active, too, while it waits for its arguments. A
server that tracks no activities says "disabled"."""
_TROUBLE: Final[tuple[type[BaseException], ...]] = (*TROUBLE, HeadraceError)


class HalfOpenWatch:
    """Watches the calls of one pool. A false alarm costs a repeated call and does no other harm."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._since: dict[Connection, float] = {}
        """Connections that wait for the server, and since when."""
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._blind = False
        """A pooler in between gives sessions its own pids, which the server does not know."""

    def begin(self, connection: Connection) -> None:
        """A call begins to use this connection."""
        loop = asyncio.get_running_loop()
        self._since[connection] = loop.time()
        if self._timer is None and self._asking is None and not self._blind:
            self._timer = loop.call_later(_DOUBT, self._look)

    def end(self, connection: Connection) -> None:
        """The call has ended."""
        self._since.pop(connection, None)

    @property
    def watched(self) -> list[Connection]:
        return list(self._since)

    async def close(self) -> None:
        self._blind = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _overdue(self) -> dict[Connection, float]:
        now = asyncio.get_running_loop().time()
        return {connection: since for connection, since in self._since.items() if now - since >= _DOUBT}

    def _look(self) -> None:
        self._timer = None
        if self._overdue():
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="headrace-half-open")
            self._asking.add_done_callback(self._asked)
        else:
            self._look_later()

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._asking = None
        if not asking.cancelled():
            asking.exception()  # the calls have time limits of their own
            self._look_later()

    def _look_later(self) -> None:
        if self._since and not self._blind:
            loop = asyncio.get_running_loop()
            # Not at once, because a server that cannot be reached would be asked without a pause.
            self._timer = loop.call_at(max(min(self._since.values()) + _DOUBT, loop.time() + _AGAIN), self._look)

    async def _ask(self) -> None:
        connection: Connection = None
        try:
            connection = await self._connect()
            idle: dict[Connection, tuple[Any, ...]] = {}
            while overdue := self._overdue():
                numbers = {watched: watched.get_server_pid() for watched in overdue if not watched.is_closed()}
                rows = await connection.fetch(_ASK, list(numbers.values()))
                if rows[0]["me"] != connection.get_server_pid():
                    self._blind = True
                    return
                sessions = {row["pid"]: (row["working"], row["state_change"]) for row in rows}
                for watched, number in numbers.items():
                    working, changed = sessions.get(number, (False, None))
                    observed = (overdue[watched], changed)
                    if working or self._since.get(watched) != overdue[watched]:
                        idle.pop(watched, None)
                    elif idle.get(watched) == observed:
                        watched.terminate()
                    else:
                        idle[watched] = observed
                await asyncio.sleep(_AGAIN)
        except _TROUBLE:
            return  # The server cannot be asked now. The next check comes later.
        finally:
            if connection is not None:
                connection.terminate()
