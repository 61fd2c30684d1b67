"""`--log-format json`: every line of headrace's processes is one JSON object, with the job that it is about."""

from __future__ import annotations

import json
import signal
import textwrap
from typing import Any

import pytest

from cli.shell import Shell, interrupt

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TALKING = """
import logging
from headrace import Headrace, Retry

app = Headrace()
log = logging.getLogger("talking")


@app.task(name="in_loop", redact=["secret"])
async def in_loop(secret: str) -> None:
    log.info("in the loop")


@app.task(name="in_thread")
def in_thread() -> None:
    log.info("in a thread")


@app.task(name="in_process", executor="process")
def in_process() -> None:
    log.info("in a process")


@app.task(name="fails", redact=["secret"], retry=Retry(max_attempts=1))
async def fails(secret: str) -> None:
    raise ValueError("it was " + secret)
"""


def objects(errors: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.splitlines() if line]


def test_a_worker_writes_one_json_object_per_line(shell: Shell) -> None:
    (shell.folder / "talking.py").write_text(textwrap.dedent(TALKING))
    for task, *args in (("in_loop", '"sesame"'), ("in_thread",), ("in_process",), ("fails", '"sesame"')):
        shell("enqueue", task, *args, "--app", "talking:app", "--trace", TRACE)
    process = shell.process("worker", "talking:app", "--log-format", "json", "--job-log-level", "info")
    shell.reach({"done": 3, "dead": 1})
    _, errors = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, errors
    found = objects(errors)
    assert "sesame" not in errors
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)

    ids = {job["task"]: job["id"] for job in shell.json("jobs", "list")["items"]}
    talked = {line["message"]: line for line in found if line["logger"] == "talking"}
    [worker] = {line["worker"] for line in found if "worker" in line}
    for task, message in (("in_loop", "in the loop"), ("in_thread", "in a thread"), ("in_process", "in a process")):
        line = talked[message]
        assert (line["job_id"], line["task"], line["attempt"]) == (ids[task], task, 1)
        assert (line["queue"], line["worker"], line["trace_id"]) == ("default", worker, TRACE.split("-")[1])
    claims = [line for line in found if line.get("event") == "job.claimed"]
    assert {line["job_id"]: (line["attempt"], line["worker"]) for line in claims} == dict.fromkeys(
        ids.values(), (1, worker)
    )
    starts = {line["task"] for line in found if line.get("event") == "attempt.started"}
    assert starts == {"in_loop", "in_thread", "in_process", "fails"}
    assert {line["task"] for line in found if line.get("event") == "attempt.ended"} == starts - {"fails"}
    [dead] = [line for line in found if line.get("event") == "job.dead"]
    assert (dead["level"], dead["job_id"]) == ("error", ids["fails"])
    assert "in fails" in dead["message"]


def test_text_is_the_default_and_the_environment_chooses(shell: Shell) -> None:
    process = shell.process("worker", "shop:app")
    shell("enqueue", "shop.fail", '"why"', "--app", "shop:app")
    shell.reach({"dead": 1})
    _, errors = interrupt(process, signal.SIGTERM)
    assert "ERROR   headrace.job.dead: job " in errors

    process = shell.process("worker", "shop:app", HEADRACE_LOG_FORMAT="json")
    shell("enqueue", "shop.fail", '"why"', "--app", "shop:app")
    shell.reach({"dead": 2})
    _, errors = interrupt(process, signal.SIGTERM)
    assert "headrace.job.dead" in {line["logger"] for line in objects(errors)}


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_serve_and_dev_write_json_too(shell: Shell, command: str) -> None:
    (shell.folder / "loud.py").write_text(
        "import logging\nfrom headrace import Headrace\napp = Headrace()\n"
        "@app.on_start\ndef speak():\n    logging.getLogger('loud').error('here')\n"
        "@app.task\nasync def work() -> None: ...\n"
    )
    flags = ("--log-format", "json", "--port", "0")
    process = shell.process(command, "loud:app", *flags)
    assert process.stdout is not None
    assert process.stderr is not None
    found: list[str] = []
    for line in process.stderr:
        found.append(line)
        if '"here"' in line or "Ctrl-C ends" in line:
            break
    interrupt(process, signal.SIGTERM)
    assert process.returncode == 0
    if command == "dev":
        assert json.loads(found[-1])["logger"] == "loud"
