"""Large results: a worker writes them to a storage of files or objects, and the store keeps a reference.

    app.large_results(FolderResults("/srv/results"), over=64 * 1024)
    app.large_results(S3Results("my-bucket", client=boto3.client("s3")))

The worker writes the result before it settles the job. So a result that can be written nowhere is a failed attempt, and the
job's retry policy decides. The name of an object follows from the job: a reference cannot lead to another job's result.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from headrace.errors import ConfigError, ResultExpired, SerializationError
from headrace.model import duration
from headrace.model.duration import Duration
from headrace.model.job import REFERENCE, Job
from headrace.task.codec import Signature
from headrace.task.context import current_job

OVER: Final = 64 * 1024
"""Bytes of a result from which on it goes to the storage."""


class ResultStorage(Protocol):
    """Where large results are. The methods may block: they are called in threads."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object durably. `name` is `2026-11-16/JOB.ATTEMPT`. The same name may be written twice."""
        ...

    def get(self, name: str) -> bytes:
        """Read it; raises KeyError if it is gone."""
        ...


class StoredResult(msgspec.Struct, frozen=True, array_like=True):
    """A reference, as the store keeps it."""

    day: int
    """The day on which it was written."""
    size: int
    digest: bytes

    def name(self, job: str, attempt: int) -> str:
        return f"{date.fromordinal(self.day).isoformat()}/{job}.{attempt}"


class EncodedResult(msgspec.Struct, frozen=True):
    """What a function in the worker returns in place of the task's own result: its bytes, or those of a reference."""

    data: bytes | None


class LargeResults:
    """The storage of one app."""

    def __init__(self, storage: ResultStorage, over: int = OVER) -> None:
        if isinstance(over, bool) or not isinstance(over, int) or over < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"over = {over!r}: a number of bytes, 0 or more")
        for verb in ("put", "get"):
            if not callable(getattr(storage, verb, None)):
                raise ConfigError(f'{storage!r} has no {verb}(): give FolderResults("…"), S3Results("…") or your own')
        self._storage = storage
        self._over = over

    # ── in the worker ────────────────────────────────────────────────────────
    def around(self, function: Callable[..., Any], codec: Signature, *, is_async: bool) -> Callable[..., Any]:
        """The function, and its result as bytes."""

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            call: Coroutine[Any, Any, Any] = function(*args, **kwargs)
            result = self._encoded(codec, await call)
            return await asyncio.to_thread(self._write, result.data) if self._is_large(result) else result

        def run(*args: Any, **kwargs: Any) -> Any:
            result = self._encoded(codec, function(*args, **kwargs))
            return self._write(result.data) if self._is_large(result) else result

        return run_async if is_async else run

    def _encoded(self, codec: Signature, value: Any) -> Any:
        """The result as bytes. One that cannot be stored stays as it is: the worker finds the same, and ends the job for it."""
        try:
            return EncodedResult(codec.encode_result(value))
        except SerializationError:
            return value

    def _is_large(self, result: Any) -> bool:
        return isinstance(result, EncodedResult) and result.data is not None and len(result.data) > self._over

    def _write(self, data: bytes) -> EncodedResult:
        job = current_job()
        stored = StoredResult(datetime.now(UTC).date().toordinal(), len(data), _digest(data))
        self._storage.put(stored.name(str(job.id), job.attempt), data)
        return EncodedResult(REFERENCE + msgspec.msgpack.encode(stored))

    # ── for a reader ─────────────────────────────────────────────────────────
    async def fetched(self, job: Job) -> Job:
        """The job with its result in place of a reference; raises ResultExpired if the storage no longer has it."""
        stored = reference(job.result)
        if stored is None:
            return job
        name = stored.name(str(job.id), job.attempt)
        try:
            data = await asyncio.to_thread(self._storage.get, name)
        except KeyError:
            raise ResultExpired(
                f"job {job.id} of {job.task} is done; its result of {stored.size:,} bytes is no longer in the storage: "
                "let the storage keep objects longer"
            ) from None
        if _digest(data) != stored.digest:
            raise SerializationError("result", f"object {name} of the storage is not what the worker wrote")
        return msgspec.structs.replace(job, result=data)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def reference(result: bytes | None) -> StoredResult | None:
    """The reference in a job's result. None: it is the result itself."""
    if result is None or not result.startswith(REFERENCE):
        return None
    try:
        stored = msgspec.msgpack.decode(result[1:], type=StoredResult)
        date.fromordinal(stored.day)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise SerializationError("result", "is a reference that cannot be read") from None
    return stored


async def fetched(job: Job, results: LargeResults | None) -> Job:
    """The job with its result, wherever that is."""
    if results is not None:
        return await results.fetched(job)
    if reference(job.result) is not None:
        raise ConfigError(
            f"the result of job {job.id} is in a storage, and this app has none: declare app.large_results(…) here, too"
        )
    return job


# ── storages ─────────────────────────────────────────────────────────────────


class FolderResults:
    """Files in a folder that workers and readers share. Results older than `keep` are deleted, a day at a time."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: Duration = "8d") -> None:
        self._folder = Path(folder)
        self._keep = duration.parse(keep, name="keep")
        self._cleaned: date | None = None

    def put(self, name: str, data: bytes) -> None:
        """Write a file durably, and delete the folders of days that are over."""
        path = self._folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with open(handle, "wb") as file:  # noqa: PTH123  # a descriptor
                file.write(data)
                file.flush()
                os.fsync(handle)
            Path(temporary).rename(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        for folder in (path.parent, self._folder):
            _sync(folder)
        self._clean()

    def get(self, name: str) -> bytes:
        """Read a file; raises KeyError if it is gone."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def _clean(self) -> None:
        """Delete the folders of days that are over, once a day."""
        today = datetime.now(UTC).date()
        if self._cleaned == today:
            return
        self._cleaned = today
        # A result of the last second of a day is kept for the full time, too.
        oldest = (today - self._keep - timedelta(days=1)).isoformat()
        for folder in self._folder.glob("????-??-??"):
            if folder.name < oldest:
                for file in folder.iterdir():
                    file.unlink(missing_ok=True)
                folder.rmdir()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class S3Client(Protocol):
    """The part of boto3's S3 client that is used."""

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> Any: ...  # noqa: N803  # boto3's names
    def get_object(self, *, Bucket: str, Key: str) -> Any: ...  # noqa: N803


class S3Results:
    """Objects in a bucket of S3 or a compatible service. Let a lifecycle rule of the bucket delete old ones."""

    def __init__(self, bucket: str, *, client: S3Client, prefix: str = "headrace/") -> None:
        self._bucket = bucket
        self._client = client
        self._prefix = prefix

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def get(self, name: str) -> bytes:
        """Read an object; raises KeyError if it is gone."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
        except Exception as error:
            # boto3 makes its error classes at run time.
            if type(error).__name__ == "NoSuchKey":
                raise KeyError(name) from None
            raise
        data: bytes = answer["Body"].read()
        return data
