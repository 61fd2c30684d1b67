"""`/v1/dead/replays`: replays that the server runs, with canaries, a rate, their progress and a way to stop them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model import duration, rate
from headrace.model.job import JobState
from headrace.operate.dead.runs import ReplayRun, new_run_id
from headrace.policy import fingerprint
from headrace.policy.canary import Canary, Trial
from headrace.server.api.dead import DeadQuery
from headrace.server.api.job_request import check
from headrace.server.api.jobs import Where
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem


class ReplayStart(DeadQuery, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters to replay, and how."""

    group: str | None = None
    """A fingerprint."""
    everything: bool = False
    rate: str | None = None
    """At most so many at a time, such as `50/s`."""
    canary: Annotated[int, Meta(ge=1, le=1000)] | None = None
    """Replay so many first, and the rest if not too many of them die again."""
    tolerate: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """The share of canaries that may die again."""
    patience: Annotated[str, Meta(max_length=50)] = "10m"
    """How long canaries may take to end."""


class ReplayView(msgspec.Struct, kw_only=True):
    """A replay, and how far it is."""

    id: str
    by: str
    """The operator that started it."""
    what: str
    """The selection in words."""
    group: str | None
    rate: str | None
    canary: int | None
    stage: Literal["canary", "watch", "rest", "ended"]
    """`canary`: the first ones are made ready; `watch`: the server waits for their end; `rest`: the others follow."""
    replayed: int
    """Jobs that were made ready."""
    refused: int
    """Jobs that were not dead any more."""
    late: int
    """Jobs that stay dead because their `expires` or `deadline` has passed."""
    trial: Trial | None
    """How the canaries ended so far."""
    stopping: bool
    """An operator asked it to stop."""
    stopped: str | None
    """Why the rest stays dead. null: nothing was left, or it goes on."""
    started_at: datetime
    ended_at: datetime | None


class ReplayList(msgspec.Struct):
    """The replays that run, and those of the last seven days, the newest first."""

    items: list[ReplayView]
    next: None = None
    """The list is whole, so there is no next page."""


def _view(run: ReplayRun) -> ReplayView:
    return ReplayView(
        id=run.id,
        by=run.by,
        what=run.what,
        group=run.group,
        rate=None if run.rate is None else rate.show(run.rate),
        canary=run.canary,
        stage=run.stage,
        replayed=run.replayed,
        refused=run.refused,
        late=run.late,
        trial=run.trial,
        stopping=bool(run.stop_by) and run.ended_at is None,
        stopped=run.stopped,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )


def _sees(call: Call, run: ReplayRun) -> bool:
    """A bound token sees the replays of tokens with the same bounds."""
    principal = call.principal
    return not principal.bound or (principal.tenant, principal.queues) == (run.tenant, run.queues)


async def all_of(call: Call) -> Response:
    """GET /v1/dead/replays"""
    runs = await call.service.replays.runs.all()
    return answer(ReplayList([_view(run) for run, _ in runs.values() if _sees(call, run)]))


async def start(call: Call) -> Response:
    """POST /v1/dead/replays"""
    asked: ReplayStart = call.body
    bug = None if asked.group is None else check(fingerprint.check, asked.group, "invalid_group", "group")
    if bug is None and asked.where() == Where(state=[JobState.DEAD]) and not asked.everything:
        raise Problem(422, "invalid_choice", 'no jobs are selected: give a group, a filter, or "everything": true')
    pace = None if asked.rate is None else check(rate.parse, asked.rate, "invalid_rate", "rate")
    patience = check(lambda text: duration.parse(text, name="patience"), asked.patience, "invalid_patience", "patience")
    if asked.canary is not None:
        Canary(asked.canary, asked.tolerate, patience)
    now = await call.service.store.now()
    run = ReplayRun(
        id=new_run_id(),
        by=call.principal.name,
        tenant=call.principal.tenant,
        queues=call.principal.queues,
        group=bug,
        where=replace(asked.where().filter(), states=frozenset()),
        rate=pace,
        canary=asked.canary,
        tolerate=asked.tolerate,
        patience=patience,
        started_at=now,
        stage="rest" if asked.canary is None else "canary",
        seen_at=now,
    )
    try:
        return answer(_view(await call.service.replays.start(run)), 202)
    except ConfigError as error:
        raise Problem(409, "too_many_replays", str(error)) from None


async def show(call: Call) -> Response:
    """GET /v1/dead/replays/{replay}"""
    return answer(_view(await _one(call)))


async def stop(call: Call) -> Response:
    """POST /v1/dead/replays/{replay}/stop"""
    run = await _one(call)
    asked = await call.service.replays.stop(run.id, call.principal.name)
    return answer(_view(asked or run))


async def _one(call: Call) -> ReplayRun:
    run, _ = (await call.service.replays.runs.all()).get(call.path["replay"], (None, 0))
    if run is None or not _sees(call, run):
        raise Problem(404, "replay_not_found", "there is no such replay: ended ones are kept for seven days")
    return run


_NAMED: Final = ((404, "replay_not_found"),)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/dead/replays",
        scope=Scope.READ,
        does="List the replays that the server runs, and those of the last seven days.",
        handler=all_of,
        looks=1,
        answers={200: ReplayList},
    ),
    Endpoint(
        method="POST",
        path="/v1/dead/replays",
        scope=Scope.OPERATE,
        does="Start a replay that the server runs: at a rate, and behind canaries. It outlives this call and the server.",
        handler=start,
        body=ReplayStart,
        answers={202: ReplayView},
        problems=(
            (409, "too_many_replays"),
            (422, "invalid_choice"),
            (422, "invalid_group"),
            (422, "invalid_rate"),
            (422, "invalid_patience"),
        ),
    ),
    Endpoint(
        method="GET",
        path="/v1/dead/replays/{replay}",
        scope=Scope.READ,
        does="Show how far a replay is.",
        handler=show,
        answers={200: ReplayView},
        problems=_NAMED,
    ),
    Endpoint(
        method="POST",
        path="/v1/dead/replays/{replay}/stop",
        scope=Scope.OPERATE,
        does="Stop a replay. Jobs that it has made ready stay ready, and the rest stays dead.",
        handler=stop,
        answers={200: ReplayView},
        problems=_NAMED,
    ),
)
