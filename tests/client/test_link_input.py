"""What cannot become a workflow: one clear error for each mistake, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import ConfigError, GroupOver, Headrace, JobNotFound, group
from headrace.client import graph


@pytest.fixture
def add(app: Headrace) -> Iterator[Any]:
    @app.task(name="add")
    async def add(one: int, other: int = 0) -> int:
        return one + other

    yield add
    app.close()


def jobs(app: Headrace) -> int:
    return len(app.find(limit=100).jobs)


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_what_is_not_stored_any_more_cannot_be_followed(app: Headrace, add: Any, tenant: str | None):
    first = add.enqueue(1)
    app.delete(first)
    told = f"job {first.id} is not stored, or not any more"
    with pytest.raises(JobNotFound, match=told):
        first.then(add.using(tenant=tenant).job)
    with pytest.raises(JobNotFound, match=told):
        add.using(after=first, tenant=tenant).enqueue(2)
    with pytest.raises(JobNotFound, match=told):
        app.enqueue(add.using(after=[first, add.job(1)], tenant=tenant).job(2))
    with pytest.raises(JobNotFound, match=told):
        app.enqueue(add.using(tenant=tenant).job(first.out, add.job(1).out))
    assert jobs(app) == 0


def test_a_group_that_is_not_stored_cannot_be_followed(app: Headrace, add: Any):
    rows = app.open_group("never opened")
    with pytest.raises(GroupOver, match=f"group {rows.id} has ended, or does not exist"):
        add.using(after=rows).enqueue(1)
    with pytest.raises(GroupOver):
        rows.enqueue_many([add.job(1)])
    assert jobs(app) == 0


def test_too_many_jobs_in_one_call(app: Headrace, add: Any):
    many = group(add.job(number) for number in range(graph.MOST_JOBS))
    with pytest.raises(ConfigError, match=r"more than 5,000 jobs follow each other in one call: .*app.open_group"):
        app.enqueue(add.using(after=many).job(1))
    assert jobs(app) == 0


def test_a_job_cannot_follow_itself(app: Headrace, add: Any):
    """Calls are immutable. A group is not, so a cycle takes some effort."""
    around = group([])
    last = add.using(after=around).job(1).then(add)
    around.calls = (last,)
    with pytest.raises(ConfigError, match="a job of add follows itself"):
        app.enqueue(last)
    assert jobs(app) == 0


def test_a_call_that_is_refused_later_stores_nothing_of_its_graph(app: Headrace, add: Any):
    """A key makes the id of its job unknown, which is noticed when the graph is put together."""
    with pytest.raises(ConfigError, match="has a key or a unique lock"):
        app.enqueue(add.job(add.using(key="k").job(1).out, add.job(2).out))
    assert jobs(app) == 0
