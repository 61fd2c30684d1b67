"""The audit log: what operators did, who, when and to how many jobs; kept in the store itself, 90 days long."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from headrace.deadletters import whoami
from headrace.errors import StoreError
from headrace.job import new_batch
from headrace.store.contract import Store

log = logging.getLogger("headrace.audit")

KEPT: Final = timedelta(days=90)
DAYS: Final = "audit"
"""The kind of the records that name the days with entries; the entries of a day are of the kind `audit.YYYY-MM-DD`."""
LONGEST: Final = 500
"""Characters of one text."""
_FORGOTTEN_AT_ONCE: Final = 500


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody did."""

    at: datetime
    who: str
    """A token's name, or user@host for the command line."""
    action: str
    """Such as `jobs.cancel` or `queues.pause`."""
    what: str
    """What it was done to: a job's id, a queue, a filter."""
    jobs: int = 0
    """How many jobs it changed."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class Audit:
    """The audit log of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._day = ""
        """The last one that this object made known."""

    async def note(self, who: str, action: str, what: str, jobs: int = 0) -> None:
        """Write down what was done. It *was* done: when the store fails now, the entry goes to the log instead."""
        entry = Entry(at=datetime.now(UTC), who=_text(who), action=_text(action), what=_text(what), jobs=jobs)
        try:
            entry = msgspec.structs.replace(entry, at=await self._store.now())
            day = f"{entry.at:%Y-%m-%d}"
            fresh = day != self._day
            if fresh:
                # Before its first entry, so that no entry is ever without its day.
                await self._store.record(DAYS, day, b"", None)
                self._day = day
            await self._store.record(_kind(day), new_batch().hex, _encoder.encode(entry), None)
            if fresh:
                await self._forget(entry.at - KEPT)
        except StoreError as error:
            log.error("not kept in the store (%s): %s", error, _line(entry))  # noqa: TRY400 — the cause is the store's
        else:
            log.info("%s", _line(entry))

    async def read(self, since: datetime, *, limit: int = 1000) -> list[Entry]:
        """The entries from `since` on, the newest first, at most so many."""
        found: list[Entry] = []
        first = f"{since.astimezone(UTC):%Y-%m-%d}"
        for day in sorted(await self._store.records(DAYS), reverse=True):
            if day < first or len(found) >= limit:
                break
            records = await self._store.records(_kind(day))
            entries = [_decoder.decode(records[name].value) for name in sorted(records, reverse=True)]
            found += [entry for entry in entries if entry.at >= since]
        found.sort(key=lambda entry: entry.at, reverse=True)
        return found[:limit]

    async def _forget(self, before: datetime) -> None:
        """Drop the days that are over, a bounded amount of work per call."""
        last, left = f"{before:%Y-%m-%d}", _FORGOTTEN_AT_ONCE
        for day, known in (await self._store.records(DAYS)).items():
            if day >= last:
                continue
            for name, record in (await self._store.records(_kind(day))).items():
                if left == 0:
                    return
                await self._store.record(_kind(day), name, None, record.version)
                left -= 1
            await self._store.record(DAYS, day, None, known.version)


async def note_here(store: Store, action: str, what: str, jobs: int = 0) -> None:
    """Write down what the user of this process did."""
    await Audit(store).note(whoami(), action, what, jobs)


def _kind(day: str) -> str:
    return f"{DAYS}.{day}"


def _text(text: str) -> str:
    """What every store can hold, of a bounded length."""
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return cut.encode(errors="replace").decode()


def _line(entry: Entry) -> str:
    """One line of JSON, whatever the texts hold."""
    return json.dumps({"event": "audit", **msgspec.to_builtins(entry)})
