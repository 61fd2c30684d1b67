"""LIMITS and LIMIT: the rules of limit keys, changed by compare-and-set."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.model.records import LimitRule
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Bool, Bytes, Float, Int4, Int8, Text, Time, call
from headrace.store.postgres.server import Server


class LimitArgs(NamedTuple):
    """See `sql/limit.sql`."""

    p_name: Text
    p_drop: Bool
    p_concurrency: Int4 | None = None
    p_rate: Float | None = None
    p_burst: Float | None = None
    p_closed: Time | None = None
    p_state: Bytes | None = None
    p_expect: Int8 | None = None


_LIMIT: Final = call("write_limit", LimitArgs)
_LIMITS: Final = "select * from headrace.limit_rule order by name"


async def limits(server: Server) -> dict[str, LimitRule]:
    return {row["name"]: rows.rule(row) for row in await server.pool.rows(_LIMITS, write=False)}


async def limit(server: Server, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
    # Not repeated when the answer is lost, as `record`.
    answer = await server.pool.rows(_LIMIT, *_limit_args(name, rule, expect), write=True)
    version: int | None = answer[0][0]
    if version is not None:
        server.bell.ring_all()
    return version


def _limit_args(name: str, rule: LimitRule | None, expect: int | None) -> LimitArgs:
    if rule is None:
        return LimitArgs(name, p_drop=True, p_expect=expect)
    return LimitArgs(
        name,
        p_drop=False,
        p_concurrency=rule.concurrency,
        p_rate=rule.rate,
        p_burst=rule.burst,
        p_closed=rule.closed_until,
        p_state=rule.state,
        p_expect=expect,
    )
