"""STEPS: finished steps go in under their lease, and come out by job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.model.job import JobId, split_id
from headrace.model.lease import Token
from headrace.model.step import Answered, SignalWait, Step
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import (
    Bool,
    Bytes,
    Byteses,
    Int4,
    Int4s,
    Text,
    Texts,
    Time,
    Times,
    Uuid,
    call,
    text,
)
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


class AnswerWaitArgs(NamedTuple):
    """See `sql/steps.sql`."""

    p_token: Uuid
    p_position: Int4
    p_gate: Uuid
    p_journal: Bool
    p_name: Text
    p_number: Int4
    p_digest: Bytes
    p_value: Bytes
    p_at: Time


FUNCTION: Final = "add_steps"
_ADD: Final = call(FUNCTION, AddStepsArgs)
_ANSWER: Final = call("answer_wait", AnswerWaitArgs)
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


async def answer_wait(server: Server, token: Token, position: int, wait: SignalWait) -> Answered | None:
    step = wait.step
    args = AnswerWaitArgs(
        p_token=token,
        p_position=position,
        p_gate=wait.gate,
        p_journal=wait.journal,
        p_name=text(step.name),
        p_number=step.number,
        p_digest=step.digest,
        p_value=step.value or b"",
        p_at=step.at,
    )
    # The first of a name and number stays, so the call may be repeated.
    [(held, value, stored, *columns)] = await server.pool.repeatable(
        lambda: server.pool.rows(_ANSWER, *args, write=True)
    )
    steps = [Step(*row) for row in zip(*columns, strict=True)] if columns[0] else []
    return Answered(value, stored, steps) if held else None
