"""Declared webhooks: which events they report, which addresses they may use, and how they are signed. No effects."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.model.lane import check_queue, check_task_name

EVENTS: Final = ("done", "dead", "alert")
PORTS: Final = frozenset({80, 443, 8080, 8443})
MAX_URL: Final = 2000
TOLERANCE: Final = timedelta(minutes=5)
"""How old a delivery may be when its receiver checks it."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class UnsafeWebhook(ConfigError):
    """A webhook's URL leads, or could lead, to an address that is not allowed."""

    code = "unsafe_callback_url"


class DeliveryFailed(HeadraceError):
    """The receiver could not be reached, or did not answer with HTTP. The delivery is tried again."""

    code = "delivery_failed"


class BadSignature(HeadraceError):
    """A delivery that was not signed with this secret, or was signed too long ago."""

    code = "bad_signature"


# ── where to ─────────────────────────────────────────────────────────────────


class WebhookTarget(NamedTuple):
    """The parts of a URL."""

    scheme: str
    host: str
    """In lower case, without brackets."""
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _USUAL[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL for messages, without its path, which may contain a secret of the receiver."""
        return f"{self.scheme}://{self.authority}/…"


_USUAL = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+", re.ASCII)
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.ASCII)


class Allow(msgspec.Struct, frozen=True):
    """What an operator allows beyond public addresses and the usual ports: networks and names, with any port."""

    networks: tuple[Network, ...] = ()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[str]) -> Allow:
        """Parse `10.1.0.0/16`, `127.0.0.1`, `hooks.internal`. Raises ConfigError for anything else."""
        networks: list[Network] = []
        names: set[str] = set()
        for entry in entries:
            text = entry.strip().lower() if isinstance(entry, str) else ""
            try:
                networks.append(ipaddress.ip_network(text))
            except ValueError:
                name = text.rstrip(".")
                if not _NAME.fullmatch(name) or _NUMERIC.fullmatch(name.rpartition(".")[2]):
                    raise ConfigError(
                        f"webhook_allow: {entry!r} is no network such as 10.1.0.0/16 and no host name"
                    ) from None
                names.add(name)
        return cls(tuple(networks), frozenset(names))

    def has(self, host: str | Address) -> bool:
        """Whether the name is allowed."""
        if isinstance(host, str):
            return host in self.names
        return any(host in network for network in self.networks if network.version == host.version)


NOTHING: Final = Allow()


@functools.lru_cache(maxsize=1024)
def read_url(url: str) -> WebhookTarget:
    """The parts of the URL, or UnsafeWebhook. `check_url` decides whether the address is allowed."""
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL:
        raise UnsafeWebhook(f"a webhook is a URL of up to {MAX_URL:,} characters, such as https://example.com/hook")
    if not _PLAIN.fullmatch(url):
        raise UnsafeWebhook("a webhook's URL contains characters that a URL may not have: percent-encode them")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UnsafeWebhook("a webhook's URL cannot be read: write https://example.com/hook") from None
    if parts.scheme not in _USUAL:
        raise UnsafeWebhook("a webhook's URL begins with http:// or https://")
    if "@" in parts.netloc:
        raise UnsafeWebhook("a webhook's URL must not contain a user or a password: deliveries are signed instead")
    host = (parts.hostname or "").rstrip(".")
    if parts.netloc.startswith("[") and literal(host) is None:
        raise UnsafeWebhook("the text in brackets in a webhook's URL is not an address")
    if literal(host) is None and not _NAME.fullmatch(host):
        raise UnsafeWebhook("a webhook's URL needs a host name: write https://example.com/hook")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, host, _USUAL[parts.scheme] if port is None else port, path)


def literal(host: str) -> Address | None:
    """The host as an address, in any notation. None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if not _NUMERIC.fullmatch(host.rpartition(".")[2]):
        return None
    try:
        # 127.1, 0x7f.1, 017700000001, 2130706433: read as the system's resolver reads them.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        raise UnsafeWebhook("a webhook's host looks like an address and is not one") from None


def check_url(url: str, allow: Allow = NOTHING) -> str:
    """The URL, or UnsafeWebhook. A name is resolved and checked again at each delivery."""
    target = read_url(url)
    address = literal(target.host)
    if allow.has(target.host if address is None else address):
        return url
    if target.port not in PORTS:
        usual = ", ".join(str(port) for port in sorted(PORTS))
        raise UnsafeWebhook(f"a webhook's port is one of {usual}: the operator may permit others with webhook_allow")
    if address is not None:
        check_address(address, allow)
    elif target.host == "localhost" or target.host.endswith(".localhost"):
        raise _inside("this machine")
    return url


def check_address(address: Address, allow: Allow = NOTHING) -> None:
    """Raise UnsafeWebhook unless a webhook may go to this address."""
    if not allow.has(address) and not is_public(address):
        raise _inside("a private or special address")


def _inside(what: str) -> UnsafeWebhook:
    return UnsafeWebhook(f"a webhook must not lead to {what}: the operator may permit it with webhook_allow")


_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16",  # a public address that a cloud uses for services inside its machines
        "192.0.0.0/24",  # reserved for protocols, though Python calls most of it global; a cloud uses it, too
        "192.88.99.0/24",  # former relays from IPv6
        "2001::/23",  # reserved for protocols
        "3fff::/20",  # for documentation
    )
)
"""Networks that are not public, besides those that Python knows. Its list depends on the version."""


def is_public(address: Address) -> bool:
    """Whether it is an ordinary public address. An IPv4 address inside an IPv6 address is checked, too."""
    if any(address in network for network in _SPECIAL if network.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address.sixtofour is not None:
        return is_public(address.sixtofour)
    return address in _UNICAST and address.is_global and not address.is_multicast and not address.is_reserved


# ── which ends ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A URL to which an app reports the ends of its jobs."""

    url: str
    on: frozenset[str] = frozenset(EVENTS)
    queue: str | None = None
    """None: every queue."""
    task: str | None = None
    """None: every task. A dead alert belongs to a queue, not to a task."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Empty: those of the settings."""

    def wants(self, event: str, queue: str, task: str | None = None) -> bool:
        """Whether this webhook gets this event."""
        if event not in self.on or self.queue not in {None, queue}:
            return False
        return self.task in {None, task}


def declare(
    url: str,
    *,
    on: str | Iterable[str] = EVENTS,
    queue: str | None = None,
    task: str | None = None,
    secret: str | None = None,
    allow: Allow = NOTHING,
) -> Webhook:
    """A checked webhook. Raises ConfigError."""
    events = frozenset([on] if isinstance(on, str) else on)
    if not events or not events <= set(EVENTS):
        raise ConfigError(f"webhook: on = {on!r}: some of {', '.join(EVENTS)}")
    return Webhook(
        url=check_url(url, allow),
        on=events,
        queue=None if queue is None else check_queue(queue),
        task=None if task is None else check_task_name(task),
        secrets=() if secret is None else read_secrets(secret),
    )


# ── signatures, after Standard Webhooks ──────────────────────────────────────

_PREFIX = "whsec_"
_SECONDS = re.compile(r"[0-9]{1,15}", re.ASCII)


def new_secret() -> str:
    """A new secret: `whsec_…`."""
    return _PREFIX + base64.b64encode(os.urandom(32)).decode()


def read_secrets(text: str) -> tuple[str, ...]:
    """Parse one secret, or several separated by commas. The first is the newest; all sign. Raises ConfigError."""
    secrets = tuple(secret.strip() for secret in text.split(",") if secret.strip()) if isinstance(text, str) else ()
    if not secrets:
        raise ConfigError("the webhook secret is empty: make one with headrace.webhook.new_secret()")
    for secret in secrets:
        _key(secret)
    return secrets


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not 24 <= len(key) <= 64:
        # The message leaves the value out, because it may get into a log.
        raise ConfigError(
            "a webhook secret is whsec_ and 24 to 64 bytes in base64: make one with headrace.webhook.new_secret()"
        )
    return key


def sign(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of one delivery."""
    text = f"{id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(_key(secret), text, hashlib.sha256)).decode() for secret in secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: timedelta = TOLERANCE,
    now: float | None = None,
) -> str:
    """For receivers in Python: the delivery's id, or BadSignature. Store the id to recognise repeated deliveries."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        id, text, signed = given["webhook-id"], given["webhook-timestamp"], given["webhook-signature"]
    except KeyError:
        raise BadSignature("the webhook headers are missing") from None
    if not id.isascii() or not _SECONDS.fullmatch(text):
        raise BadSignature("the webhook headers cannot be read")
    timestamp, signatures = int(text), signed.split()
    if abs((time.time() if now is None else now) - timestamp) > tolerance.total_seconds():
        raise BadSignature("this delivery is too old, or from the future: is the clock right?")
    wanted = sign(read_secrets(secret), id, timestamp, body)["webhook-signature"].split()
    # Any header value is compared as bytes, even one with a lone surrogate.
    theirs = [signature.encode(errors="replace") for signature in signatures]
    good = [hmac.compare_digest(mine.encode(), signature) for mine in wanted for signature in theirs]
    if not any(good):
        raise BadSignature("this delivery was not signed with this secret")
    return id
