"""`/metrics` of `headrace worker`, read by the parser of Prometheus while real processes run jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from itertools import pairwise

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cli.shell import Shell, interrupt
from cli.test_health import address_of, look, until_code
from deploy.files import unanswered

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

SHOP = """
from headrace import Headrace, Limit, Retry

app = Headrace()
stripe = Limit("stripe", concurrency=4, cost=2)


@app.task(name="mail", queue="mails")
async def mail(number: int) -> None:
    pass


@app.task(name="charge", limits=[stripe], retry=Retry(max_attempts=2, base="1ms"))
def charge(number: int) -> str:
    if number == 7:
        raise ValueError("no")
    return "paid"


def produce() -> None:
    app.enqueue_many(mail.job(number) for number in range(333))
    app.enqueue_many(charge.job(number) for number in range(20))
"""

Families = dict[str, list[Sample]]


def read(base: str) -> Families:
    code, text = look(f"{base}/metrics")
    assert code == 200
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def until_count(base: str, name: str, count: int) -> Families:
    give_up = time.monotonic() + 120
    while True:
        families = read(base)
        samples = [sample for sample in families.get(name, []) if sample.name == f"{name}_count"]
        if sum(sample.value for sample in samples) >= count:
            return families
        assert time.monotonic() < give_up, families.get(name)
        time.sleep(0.05)


def value(families: Families, name: str, **labels: str) -> float:
    [sample] = [
        sample for samples in families.values() for sample in samples if sample.name == name and sample.labels == labels
    ]
    return sample.value


def check_histogram(samples: list[Sample]) -> None:
    """Buckets never fall, and the last one is the count."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    counts: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(sorted((name, text) for name, text in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets[key].append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[key] = sample.value
    assert buckets
    for key, bucket in buckets.items():
        assert all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(bucket))
        assert bucket[-1] == (float("inf"), counts[key])


def test_histograms_of_two_processes_count_every_attempt(shell: Shell) -> None:
    (shell.folder / "shop2.py").write_text(textwrap.dedent(SHOP))
    environment = {**os.environ, "HEADRACE_URL": shell.url}
    words = [sys.executable, "-c", "import shop2; shop2.produce()"]
    subprocess.run(words, cwd=shell.folder, env=environment, check=True)
    process = shell.process("worker", "shop2:app", "--processes", "2", "--metrics-port", "0")
    base = address_of(process)
    until_code(f"{base}/readyz", 200)
    families = until_count(base, "headrace_worker_run_seconds", 333 + 21)
    for name in ("headrace_worker_wait_seconds", "headrace_worker_run_seconds", "headrace_worker_store_call_seconds"):
        check_histogram(families[name])
    mails, charges = {"queue": "mails", "task": "mail"}, {"queue": "default", "task": "charge"}
    assert value(families, "headrace_worker_run_seconds_count", **mails) == 333
    assert value(families, "headrace_worker_run_seconds_count", **charges) == 21
    assert value(families, "headrace_worker_wait_seconds_count", **mails) == 333
    # Only the first attempt of a job has waited since its enqueue.
    assert value(families, "headrace_worker_wait_seconds_count", **charges) == 20
    assert value(families, "headrace_worker_wait_seconds_sum", **mails) > 0
    assert value(families, "headrace_worker_settled_total") == 354
    assert 1 <= value(families, "headrace_worker_settle_batches_total") <= 354
    assert value(families, "headrace_worker_store_call_seconds_count", call="settle") >= 1
    assert value(families, "headrace_worker_limit_units", limit="stripe") == 0
    assert not [sample for samples in families.values() for sample in samples if "tenant" in sample.labels]
    every_sample = [sample for samples in families.values() for sample in samples]
    assert unanswered(every_sample, of_worker=True) == []
    # A process that is replaced takes nothing away.
    children = psutil.Process(process.pid).children()
    [first, _] = [child for child in children if "headrace.worker.child" in child.cmdline()]
    first.kill()
    give_up = time.monotonic() + 60
    while value(families := read(base), "headrace_worker_process_starts_total") < 3:
        assert time.monotonic() < give_up
    assert value(families, "headrace_worker_run_seconds_count", **mails) == 333
    interrupt(process, signal.SIGTERM)
