"""The project's settings: a SQLite file unless DATABASE_URL says otherwise; jobs live in the same database."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = os.environ.get("SECRET_KEY", "for this example only")
DEBUG = True
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "mysite.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Django 6 has django.tasks; before, it is a package of its own.
TASKS_APP = [] if find_spec("django.tasks") else ["django_tasks"]
INSTALLED_APPS = [*TASKS_APP, "headrace.integrations.django", "shop"]


def database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        # A job is written with the order: take the write lock when the transaction begins, not in the middle of it.
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": unquote(parts.path[1:]),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }


DATABASES = {"default": database(os.environ.get("DATABASE_URL", f"sqlite:///{BASE_DIR}/shop.sqlite3"))}

TASKS = {
    "default": {
        "BACKEND": "headrace.integrations.django.backend.HeadraceBackend",
        "QUEUES": ["default", "shipping"],
    },
}
