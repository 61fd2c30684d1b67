"""The checks of single settings, one for each kind of value. Each raises ConfigError."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.lane import check_queue
from headrace.model.masked_url import mask_url


def time(least: timedelta) -> Callable[[str, Any], timedelta]:
    """The check of a length of time."""

    def check(name: str, value: Any) -> timedelta:
        if not isinstance(value, str | timedelta):
            raise ConfigError(
                f'{name} = {value!r} is not a duration: write "250ms", "30s", "5m", "2h", "7d" or a timedelta'
            )
        length = duration.parse(value, name=name)
        if length < least:
            raise ConfigError(f"{name} = {duration.show(length)} is too short: at least {duration.show(least)}")
        return length

    return check


def number(least: int, most: int) -> Callable[[str, Any], int]:
    """The check of a whole number."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{name} = {value!r}: a whole number from {least:,} to {most:,}")
        return value

    return check


def choice(*known: str) -> Callable[[str, Any], str]:
    """The check of one of these words."""

    def check(name: str, value: Any) -> str:
        if value not in known:
            raise ConfigError(f"{name} = {value!r}: one of {', '.join(known)}")
        return str(value)

    return check


def check_url(name: str, value: Any) -> str:
    """The URL of a store."""
    if not isinstance(value, str) or "://" not in value:
        shown = mask_url(value) if isinstance(value, str) else repr(value)
        raise ConfigError(
            f"{name} = {shown} is not a URL: write sqlite:///file.db, postgresql://user@host/db or memory://"
        )
    try:
        # It refuses only wrong brackets and unusual letters, and most URLs have neither.
        if not value.isascii() or "[" in value or "]" in value:
            from urllib.parse import urlsplit

            urlsplit(value)
    except ValueError:
        raise ConfigError(
            f"{name} cannot be read: in a password write [ as %5B, ] as %5D, / as %2F and @ as %40"
        ) from None
    return value


def check_app(name: str, value: Any) -> str:
    """The place of an app; empty: none."""
    if not isinstance(value, str) or (value and not re.fullmatch(r"[\w.]+(:[\w.]+)?", value)):
        raise ConfigError(f"{name} = {value!r}: write package.module:app")
    return value


def check_queues(_: str, value: Any) -> tuple[str, ...]:
    """The names of queues."""
    if isinstance(value, str) or not isinstance(value, tuple | list):
        raise ConfigError(f"queues = {value!r}: a list of queue names")
    return tuple(check_queue(name) for name in cast("tuple[str, ...]", value))
