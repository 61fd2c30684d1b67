"""The settings of the tests: jobs live in memory, and are enqueued when the transaction of the request is committed."""

from mysite.settings import *  # noqa: F403 - the usual way to derive settings

TASKS = {
    "default": {
        "BACKEND": "headrace.integrations.django.backend.HeadraceBackend",
        "QUEUES": ["default", "shipping"],
        "OPTIONS": {"url": "memory://"},
    },
}
