"""GET: jobs by id, with everything the store knows of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from headrace.model.gate import Wait
from headrace.model.job import Job, JobId, JobState, split_id
from headrace.store.postgres import rows
from headrace.store.postgres.pool import transaction
from headrace.store.postgres.server import Server

_JOB_NOW: Final = """
select n.* from unnest($1::uuid[], $2::int4[]) with ordinality u(batch, ord, o)
join headrace.job_now n on n.batch = u.batch and n.ord = u.ord order by u.o"""
_FAILURES: Final = """
select f.* from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.failure f on f.batch = u.batch and f.ord = u.ord order by f.attempt, f.at"""
_WAITS: Final = """
select u.batch, u.ord, headrace.waits_for(b.gate, u.batch, u.ord) as gate, b.needs from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.blocked b on b.batch = u.batch and b.hi >= u.ord and b.lo <= u.ord order by b.gate"""
_REPORTS: Final = """
select r.* from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.report r on r.batch = u.batch and r.ord = u.ord"""


async def get(server: Server, ids: Sequence[JobId]) -> list[Job | None]:
    places = [split_id(id) for id in ids]
    batches, ords = [batch for batch, _ in places], [ord for _, ord in places]

    async def look(connection: Any) -> tuple[list[Any], list[Any], list[Any], list[Any], datetime]:
        # One snapshot shows a job that moves meanwhile in one place.
        async with transaction(connection, "begin isolation level repeatable read, read only"):
            jobs = await connection.fetch(_JOB_NOW, batches, ords)
            blocked = any(job["state"] == JobState.BLOCKED for job in jobs)
            return (
                jobs,
                await connection.fetch(_FAILURES, batches, ords),
                await connection.fetch(_REPORTS, batches, ords),
                await connection.fetch(_WAITS, batches, ords) if blocked else [],
                await connection.fetchval("select clock_timestamp()"),
            )

    stored, failed, reported, waiting, now = await server.pool.run(look, write=False)
    reports = {(row["batch"], row["ord"]): row for row in reported}
    history: dict[tuple[Any, int], list[Any]] = {}
    for row in failed:
        history.setdefault((row["batch"], row["ord"]), []).append(row)
    waits: dict[tuple[Any, int], tuple[Wait, ...]] = {}
    for row in waiting:
        place = (row["batch"], row["ord"])
        waits[place] = (*waits.get(place, ()), rows.wait(row))
    jobs: dict[tuple[Any, int], Job] = {}
    for row in stored:
        place = (row["batch"], row["ord"])
        failures = tuple(rows.failure(f) for f in history.get(place, ()))
        jobs[place] = rows.job(
            row, server.injected or now, failures, reports.get(place), waits=waits.get(place, ()), whole=True
        )
    return [jobs.get(place) for place in places]
