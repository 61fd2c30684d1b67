"""Where a backend's jobs are stored: in one of Django's databases, or at a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

_KNOWN = frozenset({"database", "url", "outbox", "max_attempts", "timeout", "modules"})
_PASSED_ON = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey", "pooler", "listen", "pool"})
"""Keys of a database's OPTIONS that a PostgreSQL URL of headrace also accepts."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where jobs are stored, and which of Django's transactions can write them there."""

    url: str
    database: str | None
    """The alias whose transactions write jobs. None: none."""
    home: bool
    """The store itself is in that database."""
    outbox: bool = False
    """Jobs reach that database's outbox, and from there the store."""


def find(alias: str, options: Mapping[str, Any]) -> Place:
    """The place that a backend's OPTIONS name."""
    if unknown := sorted(set(options) - _KNOWN):
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}]: unknown OPTIONS {', '.join(unknown)}; known: {', '.join(sorted(_KNOWN))}"
        )
    url, outbox = options.get("url"), options.get("outbox")
    if url is None:
        if outbox is not None:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: an outbox is for a store elsewhere: give its url, too")
        database = options.get("database", DEFAULT_DB_ALIAS)
        return Place(url_of(database), database, home=True)
    if "database" in options:
        raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS has url and database: give the one where the jobs live")
    return Place(str(url), outbox, home=False, outbox=outbox is not None)


def url_of(database: str) -> str:
    """The headrace URL of one of Django's databases."""
    wrapper = connections[database]
    if wrapper.vendor == "sqlite":
        if in_memory(database):
            raise ImproperlyConfigured(
                f"the database {database!r} lives in memory, where no worker could see its jobs: name a file, "
                "or, in the settings of tests, OPTIONS = {'url': 'memory://'}"
            )
        return f"sqlite:///{quote(str(Path(wrapper.settings_dict['NAME']).absolute()))}"
    if wrapper.vendor == "postgresql":
        return _postgres_url(wrapper.settings_dict)
    raise ImproperlyConfigured(
        f"headrace cannot live in the database {database!r}, which is {wrapper.vendor}: set OPTIONS['url'], "
        'e.g. "redis://localhost", or name a PostgreSQL or SQLite database'
    )


def in_memory(database: str) -> bool:
    """Whether it is SQLite without a file."""
    wrapper = connections[database]
    return wrapper.vendor == "sqlite" and bool(wrapper.is_in_memory_db())


def _postgres_url(settings: Mapping[str, Any]) -> str:
    host, port = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    user, password = str(settings["USER"] or ""), str(settings["PASSWORD"] or "")
    known = {name: str(value) for name, value in settings.get("OPTIONS", {}).items() if name in _PASSED_ON}
    if host.startswith("/"):
        known["host"], host = host, ""
    if ":" in host:
        host = f"[{host}]"
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    address = f"{login}@{host}" if login else host
    query = f"?{urlencode(known)}" if known else ""
    return f"postgresql://{address}{f':{port}' if port and host else ''}/{quote(str(settings['NAME']), safe='')}{query}"
