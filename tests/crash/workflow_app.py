"""The app of the tests in which processes die in the middle of workflows. Every task tells a witness file."""

from __future__ import annotations

from crash.crash_app import tell
from headrace.app import Headrace
from headrace.task.context import current_job

app = Headrace()
go = app.event("go", int)


@app.task(name="member")
async def member(number: int) -> int:
    tell("member", number)
    return number


@app.task(name="callback")
async def callback(number: int) -> None:
    tell("callback", number)


@app.task(name="waits")
async def waits(number: int) -> int:
    tell("begins to wait", number)
    answer = await go.wait(number)
    tell("goes on", number)
    return answer


@app.task(name="parent")
async def parent(number: int) -> None:
    await waits.job(number)
    tell("has its child", number)


@app.task(name="followed")
async def followed(number: int) -> None:
    tell("followed", number)
    await current_job().then(callback.job(number))
