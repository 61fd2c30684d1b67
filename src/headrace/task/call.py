"""A job that is not yet enqueued: `task.job(…)`. What follows it and what it follows is in `links.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

import msgspec

from headrace.model.gate import Needs
from headrace.model.job import NewJob
from headrace.task.codec import Signature

if TYPE_CHECKING:
    from headrace.task.links import CallLinks
    from headrace.task.task import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")


class LinkMakers(NamedTuple):
    """What `links.py` has for making calls that follow others."""

    out: Callable[[JobCall[Any]], object]
    after: Callable[[JobCall[Any], tuple[Any, ...], Needs], JobCall[Any]]
    linked_call: Callable[..., JobCall[Any]]
    call_after: Callable[..., JobCall[Any]]


@functools.cache
def link_makers() -> LinkMakers:
    """A program whose jobs follow no others does without that module. An import statement costs a third of making a job."""
    from headrace.task.links import Out, after, call_after, linked_call

    return LinkMakers(Out, after, linked_call, call_after)


class JobCall(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """One job, checked and encoded, to be enqueued with others: `app.enqueue_many(task.job(i) for i in …)`."""

    job: NewJob
    codec: Signature
    skips: bool = False
    """Left out of the answer if it is not made because another job holds its unique lock."""
    task: Task[..., Any] | None = None
    """The task that made it."""
    links: CallLinks | None = None
    """The jobs that it follows, if those have to be enqueued with it. None: it can be enqueued alone."""

    @property
    def out(self) -> R_co:
        """Stands for the result of this job as an argument of another one: `report.job(users.out, orders.out)`."""
        return cast("R_co", link_makers().out(self))

    @overload
    def then(
        self: JobCall[T],
        task: Callable[Concatenate[T, P], Coroutine[Any, Any, S]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> JobCall[S]: ...
    @overload
    def then(
        self: JobCall[T], task: Callable[Concatenate[T, P], JobCall[S]], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobCall[S]: ...
    @overload
    def then(
        self: JobCall[T], task: Callable[Concatenate[T, P], S], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobCall[S]: ...
    def then(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobCall[Any]:
        """The job that runs when this one is done, with its result as the first argument: `charge.job(7).then(mail, "en")`.

        `task` is a task, or `task.using(…).job`. The answer is the last job of the chain: enqueue it with `app.enqueue`.
        """
        makers = link_makers()
        return makers.call_after(makers.out(self), task, args, kwargs)

    def __await__(self) -> Generator[Any, None, R_co]:
        """`text = await ocr.job(page)` inside a task: run it as a child, and give the slot back until it has ended.

        Raises JobDead or JobCancelled if the child ends so. Several children: `gather`, `group`.
        """
        return self._result().__await__()

    async def _result(self) -> R_co:
        from headrace.task.children import ChildWait, decoded

        [result] = await ChildWait((self,), self.job.task).results()
        return cast("R_co", decoded(self, result))

    def wait_sync(self) -> R_co:
        """`await call` for sync tasks, in threads and in processes: run it as a child, and give its result.

        While the child runs, the task has no slot: a BaseException goes through its code, and it runs again later.
        """
        from headrace.task.children import ChildWait, decoded

        [result] = ChildWait((self,), self.job.task).results_sync()
        return cast("R_co", decoded(self, result))
