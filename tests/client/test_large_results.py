"""Large results in a storage: written before the job is settled, read wherever a result is read, and not forgeable."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from moto.server import ThreadedMotoServer

from client import large_result_app
from headrace import ConfigError, FolderResults, Headrace, JobDead, ResultExpired, Retry, S3Results, SerializationError
from headrace.model.job import REFERENCE, JobState
from headrace.task.large_results import LargeResults, StoredResult, fetched, reference
from server.running import running

BIG = "x" * 10_000


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "eu-south-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": "eu-south-1"})
    yield client
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return FolderResults(tmp_path / "results")
    return S3Results("results", client=request.getfixturevalue("s3"))


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Headrace]:
    made = Headrace(f"sqlite:///{tmp_path}/jobs.db", poll="20ms")
    yield made
    await made.aclose()


def declare(app: Headrace) -> dict[str, Any]:
    @app.task(name="awaited")
    async def awaited(size: int) -> str:
        return "x" * size

    @app.task(name="threaded")
    def threaded(size: int) -> str:
        return "x" * size

    return {"awaited": awaited, "threaded": threaded}


@pytest.mark.parametrize("kind", ["awaited", "threaded"])
async def test_a_large_result_is_read_like_any_other(app: Headrace, storage: Any, kind: str):
    app.large_results(storage, over=1000)
    task = declare(app)[kind]
    async with app.worker():
        large, small = await task.aenqueue(10_000), await task.aenqueue(10)
        assert await large.aresult(timeout=60) == BIG
        assert await small.aresult(timeout=60) == "x" * 10
    job, other = await large.astatus(), await small.astatus()
    stored = reference(job.result)
    assert stored is not None
    assert len(job.result or b"") < 100
    assert reference(other.result) is None
    # The object is named after the job, and holds the result as the store would.
    assert storage.get(stored.name(str(job.id), 1)) == msgspec.msgpack.encode(BIG)


async def test_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LARGE_RESULTS", str(tmp_path / "results"))
    app = large_result_app.app
    async with app.worker():
        handle = await large_result_app.in_process.aenqueue(10_000)
        assert await handle.aresult(timeout=60) == BIG
    assert reference((await handle.astatus()).result) is not None
    await app.aclose()


async def test_a_storage_that_is_away_is_a_failed_attempt(app: Headrace, storage: Any):
    class Away:
        failures = 2

        def put(self, name: str, data: bytes) -> None:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("the storage is away")
            storage.put(name, data)

        def get(self, name: str) -> bytes:
            found: bytes = storage.get(name)
            return found

    app.large_results(Away(), over=1000)

    @app.task(retry=Retry(base="1ms"))
    async def work() -> str:
        return BIG

    async with app.worker():
        handle = await work.aenqueue()
        assert await handle.aresult(timeout=60) == BIG
    job = await handle.astatus()
    assert (job.attempt, job.failures, job.history[0].message) == (3, 2, "the storage is away")


async def test_a_result_that_cannot_be_stored_at_all_ends_the_job_as_without_a_storage(app: Headrace, storage: Any):
    app.large_results(storage)

    @app.task
    async def work() -> Any:
        return object()

    async with app.worker():
        handle = await work.aenqueue()
        with pytest.raises(JobDead, match="bad_result"):
            await handle.aresult(timeout=60)


async def test_an_object_that_is_gone_or_changed(app: Headrace, tmp_path: Path):
    folder = tmp_path / "results"
    app.large_results(FolderResults(folder), over=1000)
    task = declare(app)["awaited"]
    async with app.worker():
        handle = await task.aenqueue(10_000)
        await handle.aresult(timeout=60)
    [path] = folder.glob("*/*")
    path.write_bytes(b"other")
    with pytest.raises(SerializationError, match="is not what the worker wrote"):
        await handle.aresult(timeout=60)
    path.unlink()
    with pytest.raises(ResultExpired, match="no longer in the storage"):
        await handle.aresult(timeout=60)


async def test_a_reader_without_the_storage_says_what_to_declare(app: Headrace, storage: Any):
    app.large_results(storage, over=1000)
    task = declare(app)["awaited"]
    async with app.worker():
        handle = await task.aenqueue(10_000)
        await handle.aresult(timeout=60)
    with pytest.raises(ConfigError, match=r"declare app\.large_results"):
        await fetched(await handle.astatus(), None)


async def test_a_reference_leads_to_its_own_job_only(app: Headrace, tmp_path: Path):
    """A remote worker may settle any bytes. The name of the object comes from the job, not from the reference."""
    storage = FolderResults(tmp_path / "results")
    app.large_results(storage, over=1000)
    task = declare(app)["awaited"]
    async with app.worker():
        first, second = await task.aenqueue(10_000), await task.aenqueue(10)
        await first.aresult(timeout=60)
        await second.aresult(timeout=60)
    job, other = await first.astatus(), await second.astatus()
    forged = msgspec.structs.replace(other, result=job.result)
    with pytest.raises(ResultExpired):
        await LargeResults(storage).fetched(forged)
    for bad in (
        b"",
        b"\x93",
        msgspec.msgpack.encode(StoredResult(0, 1, b"")),
        msgspec.msgpack.encode(["../..", 1, b""]),
    ):
        with pytest.raises(SerializationError, match="a reference that cannot be read"):
            reference(REFERENCE + bad)


async def test_the_server_answers_with_the_result(tmp_path: Path):
    app = Headrace("memory://", poll="20ms")
    app.large_results(FolderResults(tmp_path / "results"), over=1000)
    task = declare(app)["awaited"]
    async with running(app) as server, app.worker():
        handle = await task.aenqueue(10_000)
        answer = await server.http.get(f"/v1/jobs/{handle.id}/result", params={"wait": "30s"})
        assert (answer.json()["result"], answer.json()["result_omitted"]) == (BIG, False)
        events = (await server.http.get(f"/v1/jobs/{handle.id}/events")).text
        assert '"result":null,"result_expired":false,"result_omitted":true' in events
        for path in (tmp_path / "results").glob("*/*"):
            path.unlink()
        gone = (await server.http.get(f"/v1/jobs/{handle.id}/result")).json()
        assert (gone["state"], gone["result"], gone["result_expired"]) == (JobState.DONE, None, True)


def test_a_folder_keeps_results_for_a_time(tmp_path: Path):
    today = datetime.now(UTC).date()
    names = {days: f"{today - timedelta(days=days)}/job.1" for days in (0, 1, 7, 8, 9, 30)}
    for name in names.values():
        FolderResults(tmp_path).put(name, b"data")
    FolderResults(tmp_path, keep="7d").put(f"{today}/other.1", b"data")
    left = {days for days, name in names.items() if (tmp_path / name).exists()}
    assert left == {0, 1, 7, 8}
    assert stat.S_IMODE((tmp_path / names[0]).stat().st_mode) == 0o600
    with pytest.raises(KeyError):
        FolderResults(tmp_path).get(names[30])


@pytest.mark.parametrize("over", [-1, True, "64KB"])
def test_what_is_refused(over: Any):
    with pytest.raises(ConfigError, match="a number of bytes"):
        Headrace("memory://").large_results(FolderResults("x"), over=over)
    with pytest.raises(ConfigError, match=r"has no put\(\)"):
        Headrace("memory://").large_results("/srv/results")  # type: ignore[arg-type]
