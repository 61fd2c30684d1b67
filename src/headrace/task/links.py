"""What a job follows: the jobs whose results are its arguments, and those that it runs after.

`call.out` is a placeholder. Encoded arguments hold a reference in its place: 16 bytes, which are the id of a stored job, or of
a group, or a mark that `client/graph.py` replaces by the id that the job gets when it is enqueued.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.errors import BadArguments, ConfigError
from headrace.model.gate import Needs, Wait
from headrace.model.job import NewJob
from headrace.task.call import JobCall
from headrace.task.codec import Signature, decode_options, encode_options
from headrace.task.codec.hooks import enc_hook
from headrace.task.codec.references import EXTENSION, reference
from headrace.task.group import Gathered, JobGroup
from headrace.task.handle import Handle
from headrace.task.options import EnqueueOptions
from headrace.task.task import Bound, Task

Source = JobCall[Any] | Handle[Any] | JobGroup[Any] | Gathered
"""What a job can follow."""

_PROCESS: Final = os.urandom(8)
"""Begins the mark of each call, so that no argument holds one by accident."""
UNSTORED: Final = (JobCall, JobGroup)
"""Kinds of sources that are enqueued with the call."""
_KINDS: Final = (*UNSTORED, Handle, Gathered)
_MAKERS: Final = (Task, Bound)


class Out:
    """Stands for the result of a job, or for the results of a group, in the arguments of another job."""

    __slots__ = ("source",)
    headrace_placeholder = True
    """Read by the codec (`is_placeholder`), which does not import this module."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"<the result of {_label(self.source)}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self!r} is not known yet, so it has no {name!r}: {_USE}")

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{self!r} is not known yet: {_USE}")

    # Without these, code that uses the placeholder as a value would store a text or a number by mistake.
    __str__ = __format__ = __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __add__ = __radd__ = (
        _refuse
    )


_USE: Final = "pass it as an argument of another job, whose task works with the value"


class CallLinks(msgspec.Struct, frozen=True, gc=False):
    """What a call follows."""

    sources: tuple[Source, ...]
    """All that it follows, and the inputs are the first of it."""
    needs: Needs
    """What must be true of all of them."""
    inputs: tuple[Source, ...] = ()
    """Their results are arguments."""
    marks: tuple[bytes, ...] = ()
    """What stands for each of them in the arguments."""

    @property
    def unstored(self) -> Source | None:
        """One of them that has to be enqueued with the call."""
        for source in self.sources:
            if isinstance(source, UNSTORED):
                return source
        return None


# ── making calls ─────────────────────────────────────────────────────────────


def call_after(out: Any, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobCall[Any]:
    """`task.job(out, *args, **kwargs)`, for what `then` takes."""
    maker: object = getattr(task, "__self__", task)
    if not isinstance(maker, _MAKERS) or (maker is not task and task.__name__ != "job"):
        raise ConfigError(f"then takes a task, or task.using(…).job, not {task!r:.80}")
    call: JobCall[Any] = cast("Any", maker).job_after((out, *args), kwargs)
    return call


def linked_call(
    task: Task[..., Any],
    plan: EnqueueOptions,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    after: tuple[Source, ...] = (),
    needs: Needs = Needs.DONE,
) -> JobCall[Any]:
    """A call whose arguments hold placeholders, and that may run after further jobs."""
    marks = Marks()
    keyed = plan.key is not None or task.options.unique is not None
    payload = task.codec.encode_linked(args, kwargs, marks, canonical=keyed)
    _check_needs(task.name, marks, needs)
    if keyed:
        if marks.sources and task.options.unique is not None and task.options.unique.key is None:
            raise ConfigError(
                f"{task.name} is unique by all its arguments, and results of other jobs are not known yet: give it "
                "Unique(key=…), a function of the other arguments"
            )
        # The digest of a key is that of the arguments without marks and ids, which differ in every call.
        job = replace(task.make_job(plan, args, kwargs, marks.blank(payload)), payload=payload)
    else:
        job = task.make_job(plan, args, kwargs, payload)
    return following(JobCall(job, task.codec, task.skips, task), marks.links(after, needs))


def linked_raw(
    make: Callable[[bytes], NewJob],
    arguments: Mapping[str, Any],
    after: tuple[Source, ...],
    needs: Needs,
    codec: Signature,
) -> JobCall[Any]:
    """The same for a task that the app does not declare. `make` makes its job from encoded arguments."""
    marks = Marks()
    payload = msgspec.msgpack.Encoder(enc_hook=marks, order="deterministic").encode(
        (arguments["args"], arguments["kwargs"])
    )
    job = make(marks.blank(payload))
    _check_needs(job.task, marks, needs)
    return following(JobCall(replace(job, payload=payload), codec), marks.links(after, needs))


def _check_needs(task: str, marks: Marks, needs: Needs) -> None:
    if marks.sources and needs is not Needs.DONE:
        raise ConfigError(
            f"{task}: its arguments are results of other jobs, which exist only when those are done: leave "
            f'when="{needs}" out, or pass no results'
        )


def after(call: JobCall[Any], sources: tuple[Source, ...], needs: Needs) -> JobCall[Any]:
    """The call of a job that runs after these, and has no results of others as arguments."""
    return following(call, CallLinks(sources, needs))


def following(call: JobCall[Any], links: CallLinks) -> JobCall[Any]:
    """The call with these links. One that follows a single stored job or group only has none, and waits for its id by itself."""
    if links.unstored is None:
        ids = {source.id for source in links.sources if not isinstance(source, UNSTORED)}
        if len(ids) == 1:
            [stored] = ids
            job = waiting(call.job, Wait(stored, links.needs))
            if links.inputs:
                job = replace(job, options=with_inputs(job.options, ids))
            return replace(call, job=job)
    return JobCall(call.job, call.codec, call.skips, call.task, links)


class Marks:
    """Encodes placeholders, and remembers what they stand for, and the bytes that stand for it."""

    __slots__ = ("marks", "sources")

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.marks: list[bytes] = []

    @property
    def count(self) -> int:
        return len(self.sources)

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, Out):
            return enc_hook(value)
        source = value.source
        mark = _mark_of(source)
        self.sources.append(source)
        self.marks.append(mark)
        return msgspec.msgpack.Ext(EXTENSION, mark)

    def links(self, after: tuple[Source, ...], needs: Needs) -> CallLinks:
        """What a call follows whose arguments hold these, and that runs after others, too."""
        inputs = tuple(self.sources)
        return CallLinks((*inputs, *after), needs, inputs, tuple(self.marks))

    def blank(self, payload: bytes) -> bytes:
        for mark in self.marks:
            payload = payload.replace(reference(mark), reference(bytes(16)))
        return payload


def _mark_of(source: Source) -> bytes:
    """What stands for it in arguments: its id, or a mark that is unique for as long as the call exists."""
    if isinstance(source, UNSTORED):
        return _PROCESS + id(source).to_bytes(8, "big")
    return source.id.bytes


def with_inputs(options: bytes | None, inputs: Iterable[UUID]) -> bytes | None:
    """The options of a job with the ids of its inputs, for the worker."""
    return encode_options(replace(decode_options(options), inputs=tuple(inputs)))


def waiting(job: NewJob, wait: Wait | None) -> NewJob:
    # `replace` takes three times as long, and graphs have many jobs.
    return NewJob(job.task, job.payload, job.lane, job.due, job.key, job.options, job.unique, wait)


# ── checks ───────────────────────────────────────────────────────────────────


def check_after(value: Any, name: str) -> tuple[Source, ...]:
    """What `using(after=…)` takes, or a ConfigError."""
    if isinstance(value, _KINDS):
        return (cast("Any", value),)
    if isinstance(value, str | bytes | Out) or not isinstance(value, Iterable):
        raise _not_a_source(value, name)
    sources = tuple(cast("Iterable[Source]", value))
    for source in sources:
        if not isinstance(source, _KINDS):
            raise _not_a_source(source, name)
    return sources


def _not_a_source(value: Any, name: str) -> ConfigError:
    return ConfigError(f"{name} = {value!r:.80}: a handle, task.job(…), a group, or several of them")


def check_stored(call: JobCall[Any], verb: str) -> None:
    """A BadArguments for a call that is enqueued alone and follows a call that is not enqueued."""
    if call.links is not None and (source := call.links.unstored) is not None:
        raise BadArguments(
            f"{call.job.task} follows {_label(source)}, which is not enqueued yet: enqueue both in one call, "
            f"app.{verb}({call.job.task.rpartition('.')[2]}.job(…))"
        )


def check_alone(call: JobCall[Any], where: str) -> None:
    """A ConfigError for a call that follows others where only single jobs can be."""
    if call.links is not None:
        raise ConfigError(f"{where}: a job of {call.job.task} follows other jobs: enqueue it with app.enqueue(…)")


def _label(source: Source) -> str:
    if isinstance(source, JobCall):
        return f"a job of {source.job.task}"
    return f"job {source.id}" if isinstance(source, Handle) else "a group"
