"""Uniqueness as declared: what is refused, and the locks that come of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import Headrace, Unique
from headrace.errors import BadArguments, ConfigError
from headrace.model.job import JobState


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "order"}, "key = 'order': a function of the task's arguments"),
        ({"within": "soon"}, "is not a duration"),
        ({"within": 10}, "within = 10 is not a duration"),
        ({"within": "0s"}, "must be more than 0"),
        ({"states": ()}, "states is empty"),
        ({"states": ("waiting",)}, "some of scheduled, ready, running"),
        ({"on_conflict": "raise"}, "one of return, skip, replace, debounce"),
        ({"on_conflict": "debounce"}, 'needs within="5s"'),
    ],
)
def test_nonsense_is_refused_where_it_is_declared(options: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        Unique(**options)


def declared(unique: Any, **options: Any) -> Any:
    app = Headrace("memory://")

    @app.task(unique=unique, **options)
    async def charge(order: int, shop: str = "acme") -> None: ...

    return charge


def test_a_task_takes_a_unique():
    with pytest.raises(ConfigError, match=r"unique = True: write Unique\(\)"):
        declared(True)
    with pytest.raises(ConfigError, match="expires = 5s and a debounce within 5s: it could never start"):
        declared(Unique(within="5s", on_conflict="debounce"), expires="5s")


def test_the_lock_of_all_arguments():
    charge = declared(Unique())
    one, same, other = (
        call.job.unique for call in (charge.job(1, "x"), charge.job(order=1, shop="x"), charge.job(2, "x"))
    )
    assert one == same != other
    assert one.states == {JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.RUNNING}
    assert (one.within, one.replace) == (None, False)


def test_the_lock_of_a_key():
    charge = declared(Unique(key=lambda order, shop: order, within="10m", states=("ready",), on_conflict="replace"))
    lock = charge.job(1, "x").job.unique
    assert lock == charge.job(1, "y").job.unique
    assert (lock.name, lock.within, lock.states, lock.replace) == ("1", timedelta(minutes=10), {JobState.READY}, True)


def test_a_debounced_job_waits_and_its_lock_outlives_the_wait():
    charge = declared(Unique(within="5s", on_conflict="debounce"))
    job = charge.job(1).job
    assert job.due == timedelta(seconds=5)
    assert (job.unique.within, job.unique.replace) == (None, True)
    assert charge.using(priority=3).job(1).job.due == timedelta(seconds=5)
    with pytest.raises(ConfigError, match="is debounced"):
        charge.using(delay="1m")


@pytest.mark.parametrize("key", [lambda order, shop: 1.5, lambda order, shop: "", lambda order, shop: True, lambda: 1])
def test_a_bad_key_is_the_callers_error(key: Any):
    with pytest.raises(BadArguments, match="the task's unique= function"):
        declared(Unique(key=key)).job(1, "x")
