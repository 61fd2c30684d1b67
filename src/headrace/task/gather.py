"""`gather`: a task awaits several jobs with one wait, and gets their results as a tuple."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from headrace.task.call import JobCall
from headrace.task.children import ChildWait

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")


@overload
def gather(one: JobCall[A], /) -> Coroutine[Any, Any, tuple[A]]: ...
@overload
def gather(one: JobCall[A], two: JobCall[B], /) -> Coroutine[Any, Any, tuple[A, B]]: ...
@overload
def gather(one: JobCall[A], two: JobCall[B], three: JobCall[C], /) -> Coroutine[Any, Any, tuple[A, B, C]]: ...
@overload
def gather(
    one: JobCall[A], two: JobCall[B], three: JobCall[C], four: JobCall[D], /
) -> Coroutine[Any, Any, tuple[A, B, C, D]]: ...
@overload
def gather(
    one: JobCall[A], two: JobCall[B], three: JobCall[C], four: JobCall[D], five: JobCall[E], /
) -> Coroutine[Any, Any, tuple[A, B, C, D, E]]: ...
@overload
def gather(*calls: JobCall[R]) -> Coroutine[Any, Any, tuple[R, ...]]: ...
def gather(*calls: JobCall[Any]) -> Coroutine[Any, Any, tuple[Any, ...]]:
    """Run jobs as children of the calling task, with one wait for all of them.

    `text, size = await gather(ocr.job(a), count.job(b))`. The task gives its slot back until all are done. Raises JobDead or
    JobCancelled as soon as one has ended so; the other ones go on, and are cancelled if the task does not catch the error.
    """
    # The call is numbered now, and not when it is awaited: the order of awaits may differ from attempt to attempt.
    return _gathered(ChildWait(calls, "gather") if calls else None)


async def _gathered(children: ChildWait | None) -> tuple[Any, ...]:
    return () if children is None else tuple(children.decoded(await children.results()))


@overload
def gather_sync(one: JobCall[A], /) -> tuple[A]: ...
@overload
def gather_sync(one: JobCall[A], two: JobCall[B], /) -> tuple[A, B]: ...
@overload
def gather_sync(one: JobCall[A], two: JobCall[B], three: JobCall[C], /) -> tuple[A, B, C]: ...
@overload
def gather_sync(one: JobCall[A], two: JobCall[B], three: JobCall[C], four: JobCall[D], /) -> tuple[A, B, C, D]: ...
@overload
def gather_sync(
    one: JobCall[A], two: JobCall[B], three: JobCall[C], four: JobCall[D], five: JobCall[E], /
) -> tuple[A, B, C, D, E]: ...
@overload
def gather_sync(*calls: JobCall[R]) -> tuple[R, ...]: ...
def gather_sync(*calls: JobCall[Any]) -> tuple[Any, ...]:
    """Run jobs as children of a sync task, in a thread or in a process, with one wait for all of them.

    While they run, the task has no slot: a BaseException goes through its code, and it runs again later.
    """
    if not calls:
        return ()
    children = ChildWait(calls, "gather")
    return tuple(children.decoded(children.results_sync()))
