"""Usage: the seconds that the attempts of each tenant ran, and the seconds that slots were busy and available."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

import msgspec

MOST_TENANTS: Final = 100
"""Tenants that a packed usage names. The others count together."""
_FORMAT: Final = b"\x02"
"""The first byte of a packed usage. That of a histogram is another one."""
_MICRO: Final = 1_000_000


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """Microseconds, because whole numbers take fewer bytes."""

    busy: int
    available: int
    other: int
    tenants: dict[str, int]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class Usage:
    """Seconds that add up, whatever the order in which usages are merged. Only small tenants may lose their name."""

    __slots__ = ("available", "busy", "other", "tenants")

    def __init__(
        self, tenants: Mapping[str, float] | None = None, *, busy: float = 0.0, available: float = 0.0
    ) -> None:
        self.tenants: dict[str, float] = dict(tenants or {})
        """Run seconds by tenant. The name of jobs without a tenant is empty."""
        self.other = 0.0
        """Run seconds of tenants that are not named."""
        self.busy = busy
        """Seconds in which slots ran an attempt, each slot for itself."""
        self.available = available
        """Seconds in which there were slots, each slot for itself."""

    @property
    def seconds(self) -> float:
        """Run seconds of all tenants."""
        return sum(self.tenants.values()) + self.other

    def merge(self, other: Usage) -> None:
        """Add everything that the other one holds."""
        for tenant, seconds in other.tenants.items():
            self.tenants[tenant] = self.tenants.get(tenant, 0.0) + seconds
        self.other += other.other
        self.busy += other.busy
        self.available += other.available

    def pack(self) -> bytes:
        """As bytes: the tenants with the most seconds by name, and the sum of the others."""
        largest = sorted(self.tenants.items(), key=lambda entry: (-entry[1], entry[0]))
        other = self.other + sum(seconds for _, seconds in largest[MOST_TENANTS:])
        tenants = {tenant: round(seconds * _MICRO) for tenant, seconds in largest[:MOST_TENANTS]}
        packed = _Packed(round(self.busy * _MICRO), round(self.available * _MICRO), round(other * _MICRO), tenants)
        return _FORMAT + _encode(packed)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The usage of these bytes. Raises ValueError if they are none."""
        if packed[:1] != _FORMAT:
            raise ValueError("these bytes are no usage of a known format")
        try:
            numbers = _decode(packed[1:])
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise ValueError("the bytes of a usage are damaged") from None
        seconds = (numbers.busy, numbers.available, numbers.other, *numbers.tenants.values())
        if min(seconds) < 0 or len(numbers.tenants) > MOST_TENANTS:
            raise ValueError(f"a usage has no negative seconds, and names at most {MOST_TENANTS} tenants")
        usage = cls(
            {tenant: micros / _MICRO for tenant, micros in numbers.tenants.items()},
            busy=numbers.busy / _MICRO,
            available=numbers.available / _MICRO,
        )
        usage.other = numbers.other / _MICRO
        return usage
