"""Tokens: shown once, stored as SHA-256 only. `server/auth.py` decides which of them are valid."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.duration import Duration
from headrace.model.lane import check_queue, check_tenant
from headrace.model.records import Record
from headrace.model.scope import Scope
from headrace.operate.audit import Ledger
from headrace.store.contract import Store

KIND: Final = "token"
LONGEST: Final = 128
"""The most characters of a token."""
SIGNED_OUT: Final = 500
"""Sessions of one token that are kept as signed out. Beyond it the one that ends first is dropped."""

_LETTERS: Final = string.digits + string.ascii_letters
_ID_LENGTH: Final = 12
_SECRET_LENGTH: Final = 27  # base 62: 160 bits
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}", re.ASCII)
_TOKEN = re.compile(rb"hr_([0-9A-Za-z]{12})_[0-9A-Za-z]{22,80}")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token, without its text."""

    id: str
    """Its middle part, by which it is looked up."""
    name: str
    sha256: bytes
    """Of the whole text."""
    scopes: frozenset[Scope]
    queues: frozenset[str] | None = None
    """None: all."""
    tenant: str | None = None
    """None: all."""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    signed_out: dict[str, datetime] = {}
    """Sessions of browsers that were signed out, by id, with the time at which each would have ended by itself."""

    def state(self, now: datetime) -> str:
        """`revoked`, `expired` or `good`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "good"


class TokenView(msgspec.Struct, kw_only=True):
    """A token as an operator sees it, without its secret."""

    id: str
    """Its middle part, by which it is revoked."""
    name: str
    scopes: list[Scope]
    queues: list[str] | None
    """The queues that it is bound to. null: none."""
    tenant: str | None
    """The tenant that it is bound to. null: none."""
    created_at: datetime
    expires_at: datetime | None
    """null: never."""
    revoked_at: datetime | None
    state: str
    """`good`, `expired` or `revoked`."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Token)


def digest(text: bytes) -> bytes:
    """The stored part of a token."""
    return hashlib.sha256(text).digest()


def id_of(text: bytes) -> str | None:
    """The id in the text of a token. None: it is not a token."""
    match = _TOKEN.fullmatch(text) if len(text) <= LONGEST else None
    return None if match is None else match[1].decode()


def read(records: Mapping[str, Record]) -> dict[str, Token]:
    """The tokens in these records. A record that cannot be read, perhaps of a newer version, is left out."""
    tokens: dict[str, Token] = {}
    for id, record in records.items():
        try:
            tokens[id] = _decoder.decode(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return tokens


def shown(token: Token, now: datetime) -> TokenView:
    """The token without its hash, for the command line and for HTTP."""
    return TokenView(
        id=token.id,
        name=token.name,
        scopes=sorted(token.scopes),
        queues=None if token.queues is None else sorted(token.queues),
        tenant=token.tenant,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        state=token.state(now),
    )


def describe(token: Token) -> str:
    """What the token may do and until when, for the audit log."""
    parts = [", ".join(sorted(token.scopes))]
    if token.tenant is not None:
        parts.append(f"tenant {token.tenant}")
    if token.queues is not None:
        parts.append(f"queues {', '.join(sorted(token.queues))}")
    if token.expires_at is not None:
        parts.append(f"until {token.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
    return f"{label(token)}: {'; '.join(parts)}"


def label(token: Token) -> str:
    """Its name and its id, for the audit log."""
    return f"{token.name} ({token.id})"


async def any(store: Store) -> bool:  # called as `tokens.any(store)`
    """Whether there is any token. A revoked token counts, so that revoking the last one does not open the server."""
    return bool(await store.records(KIND))


async def all(store: Store) -> list[Token]:  # called as `tokens.all(store)`
    """Every token, the oldest first."""
    return sorted(read(await store.records(KIND)).values(), key=lambda token: (token.created_at, token.id))


async def create(
    store: Store,
    name: str,
    *,
    scopes: Iterable[Scope | str],
    queues: Iterable[str] = (),
    tenant: str | None = None,
    expires: Duration | None = None,
) -> tuple[str, Token]:
    """Make a token. Returns its text, which is stored nowhere, and the stored part."""
    check_name(name)
    allowed = check_scopes(scopes)
    bound = frozenset(check_queue(queue) for queue in queues) or None
    if tenant is not None and not check_tenant(tenant):
        raise ConfigError("tenant = '': name the tenant, or leave it out for a token that sees all of them")
    now = await store.now()
    if clash := [token for token in await all(store) if token.name == name and token.state(now) == "good"]:
        raise ConfigError(f"a token {name} exists already, {clash[0].id}: revoke it first, or choose another name")
    lifetime = None if expires is None else duration.parse(expires, name="expires")
    if lifetime is not None and lifetime <= timedelta(0):
        raise ConfigError("expires = 0: the token would never be valid")
    id = _random(_ID_LENGTH)
    text = f"hr_{id}_{_random(_SECRET_LENGTH)}"
    token = Token(
        id=id,
        name=name,
        sha256=digest(text.encode()),
        scopes=allowed,
        queues=bound,
        tenant=tenant,
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )
    if await store.record(KIND, id, _encoder.encode(token), None) is None:
        raise ConfigError("another token was created with the same id: try again")
    return text, token


async def revoke(store: Store, name_or_id: str, *, forget: bool = False) -> Token:
    """Revoke a token, by its id or by the name of the valid one. `forget`: also delete its record."""
    tokens = await all(store)
    now = await store.now()
    chosen = [token for token in tokens if token.id == name_or_id]
    if not chosen:
        named = [token for token in tokens if token.name == name_or_id]
        chosen = [token for token in named if token.state(now) == "good"] or named
    if not chosen:
        raise ConfigError(f"no token {name_or_id!r:.80}: `headrace tokens list` shows what there is")
    if len(chosen) > 1:
        ids = ", ".join(token.id for token in chosen)
        raise ConfigError(f"several tokens are named {name_or_id}: give one of the ids {ids}")
    return await _end(store, chosen[0], now, forget=forget)


async def _end(store: Store, token: Token, now: datetime, *, forget: bool) -> Token:
    revoked = msgspec.structs.replace(token, revoked_at=token.revoked_at or now)
    value = None if forget else _encoder.encode(revoked)
    for _ in range(10):
        record = (await store.records(KIND)).get(token.id)
        if record is None or await store.record(KIND, token.id, value, record.version) is not None:
            return revoked
    raise _contended(token.name)


async def sign_out(store: Store, id: str, session: str, until: datetime) -> None:
    """Keep that this session of the token is over, until the time at which it ends by itself."""
    now = await store.now()
    for _ in range(10):
        record = (await store.records(KIND)).get(id)
        token = None if record is None else read({id: record}).get(id)
        if record is None or token is None or token.revoked_at is not None:
            return  # The sessions of such a token are over.
        over = {name: end for name, end in token.signed_out.items() if end > now} | {session: until}
        kept = dict(sorted(over.items(), key=lambda item: item[1])[-SIGNED_OUT:])
        value = _encoder.encode(msgspec.structs.replace(token, signed_out=kept))
        if await store.record(KIND, id, value, record.version) is not None:
            return
    raise _contended(id)


def _contended(name: str) -> ConfigError:
    return ConfigError(f"other callers keep changing token {name}: try again")


def check_name(name: str) -> str:
    """The name, or a ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r:.80} is not a valid token name: 1 to 63 of A-Z a-z 0-9 _ . @ - and a letter or digit first"
        )
    return name


def check_scopes(scopes: Iterable[Scope | str]) -> frozenset[Scope]:
    """The scopes, at least one, or a ConfigError."""
    known = ", ".join(Scope)
    try:
        chosen = frozenset(Scope(scope) for scope in scopes)
    except ValueError as error:
        raise ConfigError(f"{error}: the scopes are {known}") from None
    if not chosen:
        raise ConfigError(f"a token needs a scope: {known}")
    return chosen


def _random(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


class TokenOperations:
    """The tokens of one store, as an operator changes them: each change leaves an entry in the audit log."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def create(
        self,
        name: str,
        *,
        scopes: Iterable[Scope | str],
        queues: Iterable[str] = (),
        tenant: str | None = None,
        expires: Duration | None = None,
    ) -> tuple[str, Token]:
        """Make a token; answers its text, which no store keeps, and what the store keeps of it."""
        text, token = await create(self._store, name, scopes=scopes, queues=queues, tenant=tenant, expires=expires)
        await self._ledger.note("tokens.create", describe(token))
        return text, token

    async def revoke(self, name_or_id: str, *, forget: bool = False) -> Token:
        """Make a token worthless; see the function `revoke`."""
        token = await revoke(self._store, name_or_id, forget=forget)
        await self._ledger.note("tokens.revoke", label(token))
        return token
