"""What a member of a run does with jobs that depend on each other, and the table of all roles."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Mapping

from headrace.bench.load import TEXT, Load
from headrace.bench.roles import PLAIN_ROLES, Line, Role, RoleName, RoleReport, Spec
from headrace.errors import HeadraceError
from headrace.model.lease import Ask, Lease, new_token, new_worker_id
from headrace.model.outcome import DONE
from headrace.store.contract import Store

_CLAIMS = 200
"""Claims in a row that find nothing, though jobs wait. Other members may hold the range at that moment."""


def head_of(queue: str) -> str:
    """The queue of the job for which the jobs of a queue wait. No worker of the run serves it."""
    return f"{queue}-head"


async def blocked(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue one job, and `count` jobs that wait for it, in calls of 1,000."""
    head = await load.noop.using(queue=head_of(spec.queue)).aenqueue(TEXT)
    call = load.noop.using(after=head).job(TEXT)
    await line.ready()
    began = time.monotonic()
    await load.app.aenqueue_many(itertools.repeat(call, spec.count))
    return RoleReport(began=began, ended=time.monotonic())


async def release(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Settle the job for which others wait, and time it until all of them are released."""
    store = load.connect()
    await store.open()
    try:
        lease = await _one_job(store, load, head_of(spec.queue))
        await line.ready()
        began = time.monotonic()
        await store.settle(lease.token, [(0, DONE)])
        while (await store.promote()).moved:
            pass
        ended = time.monotonic()
        return RoleReport(began=began, ended=ended, samples=[ended - began])
    finally:
        await store.close()


async def settle_each(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Claim `count` leases of one job each, then time their settlements, one after the other."""
    store = load.connect()
    await store.open()
    try:
        leases = [await _one_job(store, load, spec.queue) for _ in range(spec.count)]
        await line.ready()
        began = time.monotonic()
        for lease in leases:
            await store.settle(lease.token, [(0, DONE)])
        return RoleReport(began=began, ended=time.monotonic())
    finally:
        await store.close()


async def _one_job(store: Store, load: Load, queue: str) -> Lease:
    worker, ttl = new_worker_id(), load.app.settings.lease
    for _ in range(_CLAIMS):
        ask = Ask(worker=worker, queues=(queue,), limit=1, ttl=ttl, token=new_token())
        if (lease := await store.claim(ask)) is not None:
            return lease
        await asyncio.sleep(0.01)
    raise HeadraceError(f"claims found nothing on {queue}, though jobs wait there")


async def chains(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` chains, each in one call."""
    await load.open()
    await line.ready()
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(spec.count):
        call = load.noop.job(TEXT)
        for _ in range(spec.parts - 1):
            call = load.noop.using(after=call).job(TEXT)
        await load.app.aenqueue(call)
    return RoleReport(began=began, ended=time.monotonic(), cpu=time.process_time() - cpu)


async def chain(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue one chain of `count` marked jobs."""
    await load.open()
    await line.ready()
    began = time.monotonic()
    call = load.mark.job(0, TEXT)
    for number in range(1, spec.count):
        call = load.mark.using(after=call).job(number, TEXT)
    await load.app.aenqueue(call)
    return RoleReport(began=began, ended=time.monotonic())


async def joins(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` marked jobs one after the other, each with `parts` marked jobs that it waits for.

    The callback has the highest number of its call.
    """
    await load.open()
    await line.ready()
    began = time.monotonic()
    for number in range(0, spec.count * (spec.parts + 1), spec.parts + 1):
        await asyncio.sleep(random.uniform(0.01, 0.03))
        members = [load.mark.job(number + part, TEXT) for part in range(spec.parts)]
        await load.app.aenqueue(load.mark.using(after=members).job(number + spec.parts, TEXT))
    return RoleReport(began=began, ended=time.monotonic())


async def steps(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs of `parts` steps each, with one call."""
    await load.open()
    await line.ready()
    began = time.monotonic()
    await load.app.aenqueue_many(load.steps.job(number, spec.parts) for number in range(spec.count))
    return RoleReport(began=began, ended=time.monotonic())


async def waits(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Enqueue `count` jobs that wait for an event each."""
    await load.open()
    await line.ready()
    began = time.monotonic()
    await load.app.aenqueue_many(load.wait.job(number) for number in range(spec.count))
    return RoleReport(began=began, ended=time.monotonic())


async def signals(spec: Spec, load: Load, line: Line) -> RoleReport:
    """Signal `count` events one after the other, with time for the worker to become idle in between."""
    await load.open()
    await line.ready()
    samples: list[float] = []
    began = time.monotonic()
    for number in range(spec.count):
        await asyncio.sleep(random.uniform(0.01, 0.03))
        samples.append(time.monotonic())
        await load.event.asignal((spec.queue, number), number)
    return RoleReport(began=began, ended=time.monotonic(), samples=samples)


ROLES: Mapping[RoleName, Role] = {
    **PLAIN_ROLES,
    "blocked": blocked,
    "release": release,
    "settle_each": settle_each,
    "chains": chains,
    "chain": chain,
    "joins": joins,
    "steps": steps,
    "waits": waits,
    "signals": signals,
}
"""The roles of the installed package. The `floor_` roles write raw rows; `Beside.member` names a module that has them."""
