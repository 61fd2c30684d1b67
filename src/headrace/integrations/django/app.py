"""The apps of the project's backends, by alias. Workers import them as `headrace.integrations.django.app:default`."""

from __future__ import annotations

import threading
from typing import Any

import django
from django.apps import apps

from headrace.app import Headrace
from headrace.errors import ConfigError


def __getattr__(name: str) -> Headrace:
    if name.startswith("__"):
        raise AttributeError(name)
    outcome: list[Headrace | BaseException] = []
    # A worker imports this in its event loop, where Django refuses database calls, which an app may make during set-up.
    thread = threading.Thread(target=_load, args=(name, outcome), name="headrace-django-setup")
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _load(alias: str, outcome: list[Any]) -> None:
    try:
        if not apps.ready:
            django.setup()
        from headrace.integrations.django.backend import HeadraceBackend
        from headrace.integrations.django.frame import task_backends

        if alias not in task_backends.settings:
            raise ConfigError(f"TASKS has no {alias!r}: it has {', '.join(task_backends.settings)}")
        backend = task_backends[alias]
        if not isinstance(backend, HeadraceBackend):
            raise ConfigError(f"TASKS[{alias!r}] is another backend: set its BACKEND to {HeadraceBackend.PATH}")
        backend.discover()
        outcome.append(backend.app)
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that asked
        outcome.append(error)
