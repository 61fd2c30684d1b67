"""Sizes of memory: `512MB`, `2GB`, or a number of bytes."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import ConfigError

_UNITS = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?i?b?)", re.IGNORECASE)


def read_size(name: str, value: Any) -> int:
    """Bytes. Raises ConfigError. A unit is a power of 1,024, as in the limits of systemd and Kubernetes' Mi."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60:
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f'{name} = {value!r} is not a size: write "512MB", "2GB" or a number of bytes')
    unit = match[2].lower().replace("i", "")
    return int(match[1]) * _UNITS[unit if unit in _UNITS else f"{unit}b"]


def show_size(size: int) -> str:
    """The size with the largest unit that gives a whole number."""
    for unit in ("TB", "GB", "MB", "KB"):
        factor = _UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
