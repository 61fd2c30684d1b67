"""Heads: where the next claim should look first. The client remembers it, so that no session state is needed.

There are four memories. The *ring* holds, per queue and priority, the tenant that had the last turn and what is still
owed to it, so that tenants take turns also behind a transaction pooler. The queue that was served last stands last, so
queues take turns, too. What is *owed* holds, per queue and priority, the tenants that a claim passed over because other
claims were taking from them, and the jobs of the turns that they missed. The *lanes* hold the lane that was served last, for tenants with several. The *heads* hold, per
lane, the first place of the last claim. While a transaction holds a snapshot open, claimed ranges stay in the index as dead
entries in front of every lane, and each claim takes longer to pass them. So after a search that met many, claims begin
at the remembered heads for a while. The store still searches everything often enough that a job before a head (a late
commit, a retry, a new lane) waits for moments only.
"""

from __future__ import annotations

import time
from typing import Any, Final

_MANY: Final = 400
"""Dead index entries in one search, below which they cost no noticeable time."""
_SHARE: Final = 20.0
"""A costly search is not made again for so many times as long as it took,"""
_LONGEST, _MOST_SHARE = 1.0, 4.0
"""but for no more than so many seconds, or so many times as long where it took very long."""
_RELEASED_SHARE: Final = 2.0
"""The same where jobs that waited for others have become ready: they are before the heads, in their old places."""
_KNOWN: Final = 200
"""Lanes remembered."""
_TENANTS: Final = 2000
"""Tenants with several lanes remembered."""

Level = tuple[int, str]
"""(priority, queue)"""
Owed = dict[Level, dict[str, int]]
"""(priority, queue) → tenant → jobs, the oldest debt first"""
Lane = tuple[int, str, str, int]
"""(priority, queue, tenant, lane)"""


class Heads:
    """What one store object remembers between its claims."""

    def __init__(self) -> None:
        self._ring: dict[Level, tuple[str, int]] = {}
        self._owed: Owed = {}
        self._lanes: dict[tuple[int, str, str], int] = {}
        self._heads: dict[Lane, int] = {}
        self._full_after = 0.0
        self._probe_after = 0.0
        self._searched = 0.0, 0.0
        """When the last costly search of everything ended, and how many seconds it took."""

    @property
    def probe(self) -> bool:
        """Whether a claim from the heads also looks for priorities that no head is known of.

        That takes one descent, unless dead entries lie there, too: then the next search of everything finds them.
        """
        return time.monotonic() >= self._probe_after

    def args(self) -> tuple[dict[str, Any], bool]:
        """The ring_*, lane_* and head_* arguments of claim and p_many, and whether this is a search of everything."""
        args: dict[str, Any] = {"p_many": _MANY}
        if self._ring:
            args["ring_priority"], args["ring_queue"] = _columns(list(self._ring), 2)
            args["ring_tenant"], args["ring_owed"] = _columns(list(self._ring.values()), 2)
        if self._lanes:
            args["lane_priority"], args["lane_queue"], args["lane_tenant"] = _columns(list(self._lanes), 3)
            args["lane_lane"] = list(self._lanes.values())
        if not self._heads or time.monotonic() >= self._full_after:
            return args, True
        columns = _columns(list(self._heads), 4)
        args["head_priority"], args["head_queue"], args["head_tenant"], args["head_lane"] = columns
        args["head_seq"] = list(self._heads.values())
        return args, False

    def take_owed(self) -> Owed:
        """What tenants are owed. One claim gets it, so that claims at the same moment do not give it twice.

        `learn_owed` puts back what the claim did not give. What a claim that fails had is forgotten.
        """
        owed, self._owed = self._owed, {}
        return owed

    def learn_owed(self, row: Any, given: Owed) -> None:
        """Learn what tenants are owed after a claim that was given this of `take_owed`.

        In the queues and priorities that the claim served, its answer replaces what it was given.
        """
        if given:
            served = set(zip(row["turn_priority"], row["turn_queue"], strict=True))
            for level, tenants in given.items():
                if level not in served:
                    for tenant, jobs in tenants.items():
                        self._owe(level, tenant, jobs)
        if row["due_jobs"]:
            for priority, queue, tenant, jobs in zip(
                row["due_priority"], row["due_queue"], row["due_tenant"], row["due_jobs"], strict=True
            ):
                self._owe((priority, queue), tenant, jobs)

    def _owe(self, level: Level, tenant: str, jobs: int) -> None:
        tenants = self._owed.get(level)
        if tenants is None:
            tenants = self._owed[level] = {}
            if len(self._owed) > _KNOWN:
                del self._owed[next(iter(self._owed))]
        tenants[tenant] = tenants.get(tenant, 0) + jobs

    def learn(self, row: Any, *, full: bool) -> None:
        """Learn from the first row of claim: the next turns, the place of each lane, and the cost of the search."""
        for priority, queue, tenant, left in zip(
            row["turn_priority"], row["turn_queue"], row["turn_tenant"], row["turn_owed"], strict=True
        ):
            if tenant is not None:
                _remember(self._ring, (priority, queue), (tenant, left), _KNOWN)
        if row["served_lane"]:
            for priority, queue, tenant, lane in zip(
                row["served_priority"], row["served_queue"], row["served_tenant"], row["served_lane"], strict=True
            ):
                _remember(self._lanes, (priority, queue, tenant), lane, _TENANTS)
        if row["r_seq"]:
            places = zip(row["r_priority"], row["r_queue"], row["r_tenant"], row["r_lane"], row["r_seq"], strict=True)
            # The first of each lane is remembered, because jobs may come back to their places in it.
            for place in reversed([*places]):
                _remember(self._heads, place[:4], place[4], _KNOWN)
            if row["wasted"] > _MANY:
                self._costly(row["spent"], full=full)

    def _costly(self, spent: float, *, full: bool) -> None:
        """A search met many dead entries, so the next search of its kind is delayed."""
        now = time.monotonic()
        again = now + min(_SHARE * spent, max(_LONGEST, _MOST_SHARE * spent))
        if full:
            self._searched = now, spent
            self._full_after = again
        else:
            self._probe_after = again

    def released(self) -> None:
        """Jobs have become ready because others have ended."""
        at, spent = self._searched
        self._full_after = min(self._full_after, at + _RELEASED_SHARE * spent)

    def forget(self) -> None:
        """Forget the places and what is owed, because no job waits."""
        self._heads.clear()
        self._owed.clear()
        self._full_after = 0.0


def owed_args(owed: Owed) -> dict[str, Any]:
    """The owed_* arguments of claim."""
    if not owed:
        return {}
    rows = [(*level, *debt) for level, tenants in owed.items() for debt in tenants.items()]
    return dict(zip(("owed_priority", "owed_queue", "owed_tenant", "owed_jobs"), _columns(rows, 4), strict=True))


def _columns(places: list[tuple[Any, ...]], count: int) -> tuple[list[Any], ...]:
    return tuple([place[i] for place in places] for i in range(count))


def _remember(memory: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Move to the end of the dictionary, so that unused entries are dropped first."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]
