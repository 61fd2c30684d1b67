"""Any program may have written a store's contents: they are never run, imported or unpacked into objects."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace
from headrace import Headrace, JobDead
from headrace.errors import RemoteTaskError, SerializationError, SerializerNotAllowed
from headrace.model.job import Batch, Failure, Job, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.model.outcome import PARKED, Finish
from headrace.settings import Settings
from headrace.store.contract import Store
from headrace.task.handle import outcome
from headrace.worker import Worker

PICKLES = [
    b"cos\nsystem\n(S'id'\ntR.",
    b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
    b"!!python/object/apply:os.system ['id']",
    b"\xe3\x00\x00\x00\x00",
]
SPAWNING = frozenset(
    {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"}
)
UNPACKING = frozenset({"pickle.find_class", "marshal.loads", "marshal.load"})


class Audit:
    """What Python's own audit says of processes, unpickling and imports, while it listens."""

    def __init__(self) -> None:
        self.listening = False
        self.seen: list[str] = []
        self.imported: set[str] = set()

    def __call__(self, event: str, given: Any) -> None:
        if not self.listening:
            return
        if event in SPAWNING or event in UNPACKING:
            self.seen.append(event)
        elif event == "import":
            self.imported.add(given[0])


_audit = Audit()
sys.addaudithook(_audit)  # for good: Python has no way to take one back


@pytest.fixture
def audit() -> Iterator[Audit]:
    _audit.seen.clear()
    _audit.imported.clear()
    _audit.listening = True
    yield _audit
    _audit.listening = False


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "valkey"])
def store_name(request: pytest.FixtureRequest) -> str:
    """Where jobs lie as bytes."""
    return str(request.param)


async def worked(store: Store, *jobs: NewJob) -> list[Job]:
    """What a worker makes of these jobs. The last one is valid, to show that the worker still works."""
    app = Headrace("memory://")

    @app.task(name="good")
    async def good(*given: Any) -> str:
        return "well"

    batch = Batch(new_batch(), [*jobs, NewJob("good", b"\x92\x90\x80", Lane())])
    await store.enqueue(batch)
    settings = Settings(url="memory://", concurrency=1)
    async with Worker(app.tasks, store, settings, queues=("default",)) as worker, asyncio.timeout(30):
        await worker.idle.wait()
    found = [job for job in await store.get([job_id(batch.id, ord) for ord in range(len(batch.jobs))]) if job]
    assert found[-1].state is JobState.DONE
    return found[:-1]


async def test_s1_a_payload_is_never_unpickled(real_store: Store, audit: Audit) -> None:
    dead = await worked(real_store, *(NewJob("good", payload, Lane()) for payload in PICKLES))
    assert audit.seen == []
    assert len(dead) == len(PICKLES)
    for job in dead:
        assert job.state is JobState.DEAD
        [failure] = job.history
        assert f"headrace.errors.{SerializerNotAllowed.__name__}" in failure.traceback
        assert (job.note, failure.kind) == (SerializerNotAllowed.code,) * 2
        assert "neither MessagePack nor JSON" in failure.message
        assert job.attempt == 1


async def test_s3_a_task_is_never_imported_by_its_name(real_store: Store, audit: Audit) -> None:
    """It waits with the reason until a worker knows its task: an older worker drops no job."""
    names = ["os.system", "posix.system", "antigravity.fly", "this"]
    parked = await worked(real_store, *(NewJob(name, b"\x92\x91\xa2id\x80", Lane()) for name in names))
    assert audit.seen == []
    assert not audit.imported & {"antigravity", "this"}
    for job, name in zip(parked, names, strict=True):
        assert (job.state, job.note) == (JobState.SCHEDULED, f"{PARKED} {name}")


async def ended(store: Store, end: Finish) -> Job:
    """A job whose stored end was written by another program."""
    batch = Batch(new_batch(), [NewJob("good", b"\x92\x90\x80", Lane())])
    await store.enqueue(batch)
    lease = await store.claim(Ask(new_worker_id(), ("default",), 1, Settings(url="memory://").lease, new_token()))
    assert lease is not None
    assert not await store.settle(lease.token, [(0, end)])
    [job] = await store.get([job_id(batch.id, 0)])
    assert job is not None
    return job


def signature(function: Callable[..., Any]) -> Any:
    return Headrace("memory://").task(name="good")(function).codec


async def test_s2_an_error_is_told_by_its_name_and_never_made(real_store: Store, audit: Audit) -> None:
    async def anything() -> None: ...

    failure = Failure(1, "os.system", "id", "", await real_store.now())
    job = await ended(real_store, Finish(JobState.DEAD, note="max_attempts", failure=failure, failures=1))
    with pytest.raises(RemoteTaskError) as caught:
        outcome(job, signature(anything))
    assert caught.value.type == "os.system"
    assert isinstance(caught.value, JobDead)
    assert audit.seen == []


POISON = {"exc_type": "system", "exc_module": "os", "exc_message": ["id"]}


@pytest.mark.parametrize(
    "result", [msgspec.msgpack.encode(POISON), msgspec.json.encode(POISON), *PICKLES], ids=range(2 + len(PICKLES))
)
@pytest.mark.parametrize("store_name", ["memory"], indirect=True)
async def test_s2_a_poisoned_result_is_data_or_nothing(real_store: Store, audit: Audit, result: bytes) -> None:
    async def number() -> int:
        return 1

    async def anything() -> Any: ...

    job = await ended(real_store, Finish(JobState.DONE, result=result))
    with pytest.raises(SerializationError):
        outcome(job, signature(number))
    try:
        found = outcome(job, signature(anything))
    except SerializationError:
        assert not result.startswith(b"\x83")
    else:
        assert found == POISON
    assert audit.seen == []


# ── what the package may use ─────────────────────────────────────────────────

SOURCES = sorted(Path(headrace.__file__).parent.rglob("*.py"))
NEVER = {"pickle", "cPickle", "dill", "cloudpickle", "jsonpickle", "marshal", "shelve", "yaml"}
RUNNING = {"eval", "exec", "compile", "__import__"}
BY_NAME = {
    # Each imports what its code, or the operator's own settings, name; never what comes from a store or a request.
    "__init__.py",
    "cli/root.py",
    "cli/target.py",
    "integrations/django/backend.py",
    "operate/archive/parquet.py",
    "outbox/database.py",
    "store/postgres/driver.py",
    "store/tx.py",
    "testing/__init__.py",
    "testing/plugin.py",
    "worker/parent_watch.py",
    "worker/process.py",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def test_s1_s26_nothing_here_runs_data() -> None:
    assert len(SOURCES) > 200
    for path in SOURCES:
        check_source(str(path.relative_to(SOURCES[0].parent)), ast.parse(path.read_text()))


def check_source(where: str, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & NEVER, (where, names)
    for name, call in calls(tree):
        line = where, call.lineno
        if name in RUNNING:
            # Regular expressions are compiled, too.
            assert name == "compile", line
            assert isinstance(call.func, ast.Attribute), line
        assert name not in {"system", "popen"}, line
        assert not any(each.arg == "shell" for each in call.keywords), line
        assert name != "import_module" or where in BY_NAME, line


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("import pickle\n\npickle.loads(b'')", "TID251"),
        ("import marshal\n\nmarshal.loads(b'')", "TID251"),
        ("import shelve\n\nshelve.open('x')", "TID251"),
        ("import yaml\n\nyaml.load('x')", "TID251"),
        ("eval('1')", "S307"),
        ("exec('1')", "S102"),
        ("import subprocess\n\nsubprocess.run('id', shell=True)", "S602"),
    ],
)
def test_s1_s26_the_linter_would_say_so(line: str, rule: str) -> None:
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format=concise", "--stdin-filename=src/headrace/bad.py", "-"],
        input=f'"""Bad."""\n\n{line}\n',
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert f" {rule} " in found.stdout, found.stdout
