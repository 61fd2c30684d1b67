"""Queues as declared: what is accepted, and what is refused with the fix in the message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import ConfigError
from headrace.policy.queue import QueueOptions, dead_alerts, dead_retentions, declare


def test_options():
    made = declare("billing", dead_retention="14d", dead_alert=100)
    assert made == QueueOptions(name="billing", dead_retention=timedelta(days=14), dead_alert=100)
    assert declare("mail") == QueueOptions(name="mail")


def test_only_what_is_declared_counts():
    queues = {
        made.name: made
        for made in (declare("a", dead_retention=timedelta(hours=1)), declare("b", dead_alert=1), declare("c"))
    }
    assert dead_retentions(queues) == {"a": timedelta(hours=1)}
    assert dead_alerts(queues) == {"b": 1}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dead_retention": "two weeks"}, "queue 'q': dead_retention = 'two weeks' is not a duration"),
        ({"dead_retention": 14}, "queue 'q': dead_retention = 14 is not a duration"),
        ({"dead_retention": timedelta(-1)}, "out of range"),
        ({"dead_alert": 0}, "dead_alert = 0: a whole number from 1 on"),
        ({"dead_alert": True}, "dead_alert = True"),
        ({"dead_alert": 1.5}, "dead_alert = 1.5"),
    ],
)
def test_nonsense_is_refused_where_it_is_declared(options: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        declare("q", **options)


def test_an_app_declares_each_queue_once():
    app = Headrace("memory://")
    app.queue("billing", dead_alert=5)
    assert app.queues["billing"].dead_alert == 5
    with pytest.raises(ConfigError, match="queue billing is declared twice"):
        app.queue("billing")
    with pytest.raises(ConfigError):
        app.queue("No Such Name")
    assert list(app.queues) == ["billing"]
