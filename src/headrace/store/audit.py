"""The audit log: what operators did, when and to how many jobs. The store itself keeps it, for 90 days."""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from headrace.errors import StoreError, Unsupported
from headrace.model.job import new_batch
from headrace.store.contract import Store

log = logging.getLogger("headrace.audit")

KEPT: Final = timedelta(days=90)
DAYS: Final = "audit"
"""The kind of the records that name the days with entries; the entries of a day are of the kind `audit.YYYY-MM-DD`."""
LONGEST: Final = 500
"""Characters of one text."""
_FORGOTTEN_AT_ONCE: Final = 50


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change by an operator."""

    at: datetime
    who: str
    """A token's name, or user@host for the command line."""
    action: str
    """Such as `jobs.cancel` or `queues.pause`."""
    what: str
    """The subject: a job's id, a queue, a filter."""
    jobs: int = 0
    """How many jobs it changed."""


class AuditPlace(NamedTuple):
    """The place of an entry in the log: places of newer entries are greater."""

    at: datetime
    name: str


class AuditEntries(NamedTuple):
    """A page of the log."""

    entries: list[AuditEntry]
    next: AuditPlace | None
    """Where the next page begins. None: there is none."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AuditEntry)


class Audit:
    """The audit log of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._day = ""
        """The last day that this object has recorded."""
        self._over: list[tuple[str, str, int]] = []
        """(kind, name, version) of expired records. Each new entry drops some of them."""
        self._behind = False
        """There may be more expired records."""

    async def note(self, who: str, action: str, what: str, jobs: int = 0) -> None:
        """Write an entry. The action is done already, so if the store fails now, the entry goes to the log instead."""
        entry = AuditEntry(at=datetime.now(UTC), who=_text(who), action=_text(action), what=_text(what), jobs=jobs)
        try:
            entry = msgspec.structs.replace(entry, at=await self._store.now())
            day = f"{entry.at:%Y-%m-%d}"
            fresh = day != self._day
            if fresh:
                # The day is written before its first entry, so that every entry has its day.
                await self._store.record(DAYS, day, b"", None)
                self._day = day
            await self._store.record(_kind(day), new_batch().hex, _encoder.encode(entry), None)
            self._behind |= fresh
            if self._behind:
                await self._forget(entry.at - KEPT)
        except Unsupported:
            _tell(entry)  # The server writes the entry of this action.
        except StoreError as error:
            log.error("not kept in the store (%s): %s", error, _line(entry))  # noqa: TRY400 — the cause is the store's
        else:
            _tell(entry)

    async def read(self, since: datetime, *, limit: int = 1000) -> list[AuditEntry]:
        """The entries from `since` on, the newest first, at most `limit`."""
        return (await self.page(since, limit=limit)).entries

    async def page(
        self, since: datetime, *, limit: int, before: AuditPlace | None = None, text: str = ""
    ) -> AuditEntries:
        """One page of the entries from `since` on, the newest first: those before that place that contain the text."""
        newest: list[tuple[AuditPlace, AuditEntry]] = []
        first, last = _day(since), "9" if before is None else _day(before.at)
        for day in sorted(await self._store.records(DAYS), reverse=True):
            if day < first or len(newest) > limit:
                break
            if day <= last:
                for name, record in (await self._store.records(_kind(day))).items():
                    entry = _decoder.decode(record.value)
                    place = AuditPlace(entry.at, name)
                    if entry.at >= since and (before is None or place < before) and _contains(entry, text):
                        newest.append((place, entry))
        newest.sort(key=lambda pair: pair[0], reverse=True)
        more = newest[limit - 1][0] if len(newest) > limit else None
        return AuditEntries([entry for _, entry in newest[:limit]], more)

    async def _forget(self, before: datetime) -> None:
        """Drop expired records: a bounded number per entry, more than an entry writes, so that the log is bounded."""
        if not self._over:
            self._over = await self._oldest(f"{before:%Y-%m-%d}")
            self._behind = bool(self._over)
        for _ in range(min(_FORGOTTEN_AT_ONCE, len(self._over))):
            await self._store.record(self._over[-1][0], self._over[-1][1], None, self._over[-1][2])
            self._over.pop()

    async def _oldest(self, last: str) -> list[tuple[str, str, int]]:
        """The records of the oldest day before that one. The day itself is last. Empty: there is no such day."""
        days = await self._store.records(DAYS)
        day = min((day for day in days if day < last), default=None)
        if day is None:
            return []
        entries = await self._store.records(_kind(day))
        return [
            (DAYS, day, days[day].version),
            *((_kind(day), name, record.version) for name, record in entries.items()),
        ]


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d}"


def _contains(entry: AuditEntry, text: str) -> bool:
    words = f"{entry.who} {entry.action} {entry.what}".casefold()
    return text.casefold() in words


def _kind(day: str) -> str:
    return f"{DAYS}.{day}"


def _text(text: str) -> str:
    """A text that every store can hold, of bounded length."""
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return cut.encode(errors="replace").decode()


def _line(entry: AuditEntry) -> str:
    """The entry as one line of JSON."""
    import json  # imported here, because only an operator's verb needs it

    return json.dumps({"event": "audit", **msgspec.to_builtins(entry)})


def _tell(entry: AuditEntry) -> None:
    log.info("%s", _line(entry), extra={"event": entry.action, "by": entry.who, "jobs": entry.jobs})


def whoami() -> str:
    """The user and the host of this process, for records."""
    import getpass  # imported here, because only an operator's verb needs it

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid {os.getuid()}"  # Containers often have no name for the user.
    return f"{user}@{socket.gethostname()}"
