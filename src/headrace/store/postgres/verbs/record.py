"""RECORDS and RECORD: small named values, changed by compare-and-set."""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.model.records import Record
from headrace.store.postgres.arguments import Bytes, Int8, Text, call
from headrace.store.postgres.server import Server


class RecordArgs(NamedTuple):
    """See `sql/record.sql`."""

    p_kind: Text
    p_name: Text
    p_value: Bytes | None
    p_expect: Int8 | None


_RECORD: Final = call("record", RecordArgs)
_RECORDS: Final = "select name, version, value from headrace.records where kind = $1 order by name"


async def records(server: Server, kind: str) -> dict[str, Record]:
    rows = await server.pool.rows(_RECORDS, kind, write=False)
    return {row["name"]: Record(row["version"], row["value"]) for row in rows}


async def record(server: Server, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
    # Not repeated when the answer is lost: the second call would meet the version that the first one wrote.
    answer = await server.pool.rows(_RECORD, *RecordArgs(kind, name, value, expect), write=True)
    version: int | None = answer[0][0]
    return version
