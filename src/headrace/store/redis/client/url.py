"""What the URL says: where the servers are, as whom to come, and how careful to be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import ConfigError
from headrace.store.redis.shards import parse_counts

Kind = Literal["single", "cluster", "sentinel"]

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "valkey": ("single", False),
    "valkeys": ("single", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "valkey+cluster": ("cluster", False),
    "valkeys+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "valkey+sentinel": ("sentinel", False),
    "valkeys+sentinel": ("sentinel", True),
}
SCHEMES = frozenset(_SCHEMES)

_OPTIONS = {
    "prefix",
    "durability",
    "replicas",
    "timeout",
    "sentinel_password",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "shards",
}
_TLS = ("tls_ca", "tls_cert", "tls_key")
_ESCAPE = "write / ? # and @ in a password as %2F %3F %23 and %40"
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URL. Its `repr` shows no password."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    db: int = 0
    service: str = ""
    """The name under which sentinels know the primary."""
    username: str | None = field(default=None, repr=False)
    """Not shown either: some write their password in its place."""
    password: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    prefix: str = "hr"
    strict: bool = False
    replicas: int = 0
    """Replicas that must have a write before it is acknowledged; 0: none."""
    timeout: float = 10.0
    """Seconds to wait for an answer."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    shards: Mapping[str, int] = field(default_factory=dict[str, int])
    """queue → in how many parts it is spread over a cluster."""

    @property
    def shown(self) -> str:
        """For messages: where, without who."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse(url: str) -> Address:
    """An Address, or a ConfigError that shows no password."""
    try:
        return _parse(url)
    except ValueError as error:
        # The cause may quote the URL.
        why = str(error) if _harmless(str(error)) else "it cannot be read"
        raise ConfigError(f"the Redis URL is wrong: {why}") from None


def _parse(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"no Redis scheme {parts.scheme!r}: use one of {', '.join(sorted(_SCHEMES))}")
    kind, tls = _SCHEMES[parts.scheme]
    if "@" in parts.path or parts.fragment:
        raise ConfigError(f"the Redis URL is wrong: {_ESCAPE}")
    who, _, where = parts.netloc.rpartition("@")
    username, _, password = who.partition(":")
    hosts = tuple(_host(one, 26379 if kind == "sentinel" else 6379) for one in (where or "127.0.0.1").split(","))
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not path:
            raise ConfigError("a Sentinel URL names the primary: redis+sentinel://host:26379/mymaster")
        service = path.pop(0)
    if len(path) > 1 or (path and not _is_number(path[0])):
        raise ConfigError(f"{_quoted('/'.join(path))} is no database number: write redis://host:6379/0")
    db = int(path[0]) if path else 0
    if kind == "cluster" and db:
        raise ConfigError("a cluster has one database only: leave the number out, use ?prefix= to share it")
    if kind == "single" and len(hosts) > 1:
        raise ConfigError("several hosts need redis+cluster:// or redis+sentinel://")
    options = _options(parts.query)
    _check_use(options, kind, tls=tls)
    return Address(
        kind=kind,
        hosts=hosts,
        tls=tls,
        db=db,
        service=service,
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_password=options.get("sentinel_password"),
        prefix=_prefix(options.get("prefix", "hr")),
        strict=_strict(options.get("durability", "relaxed")),
        replicas=_number(options, "replicas", 0, 0, 10),
        timeout=float(_number(options, "timeout", 10, 1, 600)),
        tls_ca=options.get("tls_ca"),
        tls_cert=options.get("tls_cert"),
        tls_key=options.get("tls_key"),
        shards=_shards(options),
    )


def _host(text: str, default: int) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[2] or default) < 65536:
        raise ConfigError("the Redis URL has no usable host and port: write redis://host:6379/0")
    return match[1].strip("[]"), int(match[2] or default)


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _OPTIONS):
        named = repr(unknown[0]) if _harmless(query) else f"in {_quoted(query)}"
        raise ConfigError(f"unknown option {named} in the Redis URL: {', '.join(sorted(_OPTIONS))}")
    return options


def _check_use(options: Mapping[str, str], kind: Kind, *, tls: bool) -> None:
    """Refuse options that have no effect on this kind of URL: a URL with a certificate but without TLS would send plain text."""
    certificates = [name for name in _TLS if name in options]
    if certificates and not tls:
        raise ConfigError(f"{certificates[0]} needs TLS: write rediss:// (or valkeys://) in the URL, or leave it out")
    if "tls_key" in options and "tls_cert" not in options:
        raise ConfigError("tls_key is the key of a certificate: name that with tls_cert, too")
    if "sentinel_password" in options and kind != "sentinel":
        raise ConfigError("sentinel_password is for sentinels: write redis+sentinel://host:26379/mymaster")


def _shards(options: Mapping[str, str]) -> dict[str, int]:
    text = options.get("shards")
    if text is None:
        return {}
    if not _harmless(text):
        raise ConfigError(f"shards = {_quoted(text)}: write queue:number, e.g. shards=billing:4")
    return parse_counts(text)


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ConfigError(f"prefix = {_quoted(text)}: 1 to 64 of A-Z a-z 0-9 _ . : -")
    return text


def _strict(text: str) -> bool:
    if text not in {"strict", "relaxed"}:
        raise ConfigError(f'durability = {_quoted(text)}: "strict" or "relaxed"')
    return text == "strict"


def _number(options: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name, str(default))
    if not _is_number(text) or not low <= int(text) <= high:
        raise ConfigError(f"{name} = {_quoted(text)}: a whole number from {low} to {high}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


# ── what may be said ─────────────────────────────────────────────────────────


def _harmless(text: str) -> bool:
    """No part of a password that was not escaped, and so was taken for something else."""
    return "@" not in text and "//" not in text


def _quoted(text: str) -> str:
    return repr(text) if _harmless(text) else f"what is there ({_ESCAPE})"
