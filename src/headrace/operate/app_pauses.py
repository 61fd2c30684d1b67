"""The part of an app that pauses and resumes. The first call of a verb imports what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.app_clients import AppClients
from headrace.runtime.blocking import blocking

if TYPE_CHECKING:
    from headrace.model.records import Pause
    from headrace.operate.pauses import PauseOperations, Until


class AppPauses(AppClients):
    """What `Headrace` can do with pauses. Verbs come in two, `x` for sync code, `ax` for async code."""

    async def apause(
        self,
        queue: str | None = None,
        *,
        task: str | None = None,
        tenant: str | None = None,
        until: Until = None,
        by: str = "",
    ) -> None:
        """No job of this queue, task or tenant starts until then, or until it is resumed; running jobs go on.

        For a queue or a tenant that is so when this returns; workers notice the pause of a task within a second or two.
        `until`: so long from now, e.g. "2h", or an aware datetime. `by`: the name in the audit log, by default the user of
        this process.
        """
        from headrace.operate.pauses import check_until, pausable

        name, kind = pausable(queue, task, tenant)
        await (await self._pauses(by)).pause(name, kind=kind, until=check_until(until))

    pause = blocking(apause)

    async def aresume(self, queue: str | None = None, *, task: str | None = None, tenant: str | None = None) -> None:
        """Undo `pause`."""
        from headrace.operate.pauses import pausable

        name, kind = pausable(queue, task, tenant)
        await (await self._pauses()).resume(name, kind=kind)

    resume = blocking(aresume)

    async def apauses(self) -> list[Pause]:
        """Everything that is paused now: what, by which actor, since when and until when."""
        return await (await self.clients.here()).pauses()

    pauses = blocking(apauses)

    async def _pauses(self, by: str = "") -> PauseOperations:
        from headrace.operate.audit import Ledger
        from headrace.operate.pauses import PauseOperations

        client = await self.clients.here()
        return PauseOperations(client.store, Ledger.of(client.store, audit=client.audit, actor=by))
