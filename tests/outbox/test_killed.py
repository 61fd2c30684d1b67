"""A relay that is killed (SIGKILL) between the store's answer and the deletion of its row."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.model.job import Batch, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.outbox import Outbox
from headrace.outbox.table import RELAY
from headrace.store.redis.store import RedisStore
from servers.redis import RedisServer

PROGRAM = Path(__file__).with_name("killed_relay.py")


async def test_its_rows_are_relayed_by_the_next_and_no_job_is_made_twice(
    business: str, user: Any, valkey_server: RedisServer
):
    valkey_server.command("FLUSHALL")
    outbox = Outbox(business)
    await outbox.prepare()
    rows = [Batch(new_batch(), [NewJob("t", b"%d" % n, Lane("billing"))]) for n in range(20)]
    for row in rows:
        outbox.enqueue_in(user, row)
    user.commit()
    store = RedisStore(valkey_server.url())
    await store.open()
    for _ in range(3):
        relay = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, business, valkey_server.url(), stdin=-1, stdout=-1
        )
        assert relay.stdout is not None
        assert (await relay.stdout.readline()).decode().strip() == rows[0].id.hex
        # Another relay finds that the outbox is locked.
        assert await outbox.relay(store) == 0
        relay.kill()
        await relay.communicate()
        assert (await outbox.depth()).waiting == 20
        if business.startswith("sqlite"):
            user.execute(f"update {RELAY} set until = 0")
            user.commit()
    while (await outbox.depth()).waiting:
        # PostgreSQL hears of a death a moment later.
        await outbox.relay(store)
    lease = await store.claim(Ask(new_worker_id(), ("billing",), 500, timedelta(minutes=1), new_token()))
    assert lease is not None
    assert [job.id for job in lease.jobs] == [job_id(row.id, 0) for row in rows]
    await store.close()
