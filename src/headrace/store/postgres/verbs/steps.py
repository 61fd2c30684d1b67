"""STEPS: finished steps go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.model.job import JobId, split_id
from headrace.model.lease import Token
from headrace.model.step import Step
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import Byteses, Int4s, Texts, Times, Uuid, call, text
from headrace.store.postgres.server import Server


class AddStepsArgs(NamedTuple):
    """See `sql/steps.sql`."""

    p_token: Uuid
    p_positions: Int4s
    p_names: Texts
    p_numbers: Int4s
    p_digests: Byteses
    p_values: Byteses
    p_at: Times


FUNCTION: Final = "add_steps"
_ADD: Final = call(FUNCTION, AddStepsArgs)
_READ: Final = """
select name, number, digest, value, at from headrace.step where batch = $1::uuid and ord = $2::int4 order by id
"""


def steps_args(token: Token, steps: Sequence[tuple[int, Step]]) -> AddStepsArgs:
    return AddStepsArgs(
        p_token=token,
        p_positions=[position for position, _ in steps],
        p_names=[text(step.name) for _, step in steps],
        p_numbers=[step.number for _, step in steps],
        p_digests=[step.digest for _, step in steps],
        p_values=[step.value for _, step in steps],
        p_at=[step.at for _, step in steps],
    )


async def add_steps(server: Server, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
    if not steps:
        return frozenset()
    answer = await server.pool.rows(_ADD, *steps_args(token, steps), write=True)
    return rows.refused(steps, answer[0][0])


async def read_steps(server: Server, id: JobId) -> list[Step]:
    stored = await server.pool.rows(_READ, *split_id(id), write=False)
    return [Step(row["name"], row["number"], row["digest"], row["value"], row["at"]) for row in stored]
