"""Whether the duration of a refusal reveals its cause: `python -m benchmarks.http.timing`.

Two kinds of requests that must take the same time are sent in turns, in random order, over one connection. Then their
medians are compared, and Welch's test gives the probability of such a difference of means by chance.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Sequence
from uuid import uuid4

import click
import msgspec

from benchmarks.http.helper import Helper
from benchmarks.http.orders import Serve, Up
from benchmarks.http.run import START
from benchmarks.http.wire import Connection, look, unexpected
from benchmarks.stand import STANDS
from headrace.bench import stand
from headrace.bench.load import Load
from headrace.operate import tokens
from headrace.runtime.event_loop import run
from headrace.store import connect

WARM_UP = 500
SECRET_AT = len("hr_") + 12 + len("_")
"""Where a token's secret begins."""


class Compared(msgspec.Struct, kw_only=True):
    """Two kinds of requests."""

    one: str
    other: str
    requests: int
    """Of each."""
    one_us: float
    other_us: float
    """Medians."""
    difference_percent: float
    """The difference of the medians."""
    p: float
    """The probability of such a difference of means by chance."""


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """The two-sided p of Welch's t-test; for thousands of samples, where Student's distribution is the normal one."""
    spread = statistics.variance(one) / len(one) + statistics.variance(other) / len(other)
    apart = abs(statistics.fmean(one) - statistics.fmean(other))
    if spread == 0:
        return 1.0 if apart == 0 else 0.0
    return math.erfc(apart / math.sqrt(2 * spread))


async def compare(
    connection: Connection, one: tuple[str, bytes], other: tuple[str, bytes], status: int, count: int
) -> Compared:
    """Send both in turns. Each must get this status."""
    samples: tuple[list[float], list[float]] = ([], [])
    pair = [(one[1], samples[0]), (other[1], samples[1])]
    warm_up = min(WARM_UP, count)
    gc.collect()
    gc.disable()
    try:
        for number in range(count + warm_up):
            random.shuffle(pair)
            for data, taken in pair:
                began = time.perf_counter_ns()
                found, body = await connection.ask(data)
                ended = time.perf_counter_ns()
                if found != status:
                    raise unexpected(found, body)
                if number >= warm_up:
                    taken.append((ended - began) / 1000)
    finally:
        gc.enable()
    medians = [statistics.median(each) for each in samples]
    return Compared(
        one=one[0],
        other=other[0],
        requests=count,
        one_us=round(medians[0], 2),
        other_us=round(medians[1], 2),
        difference_percent=round(100 * abs(medians[0] - medians[1]) / medians[0], 3),
        p=round(welch(*samples), 4),
    )


def changed(text: str, place: int) -> str:
    """The text with another letter at this place."""
    return text[:place] + ("a" if text[place] != "a" else "b") + text[place + 1 :]


async def measure(place: stand.Stand, count: int) -> list[Compared]:
    """Measure wrong tokens, and jobs that a token may not see."""
    url, queue = place.fresh(), "bench-timing"
    await stand.prepare(url)
    store = connect(url)
    await store.open()
    good, _ = await tokens.create(store, "bench", scopes=["read"], tenant="mine")
    load = Load(url, queue)
    theirs = await load.noop.using(tenant="theirs").aenqueue("x")
    await load.app.aclose()
    await store.close()
    async with Helper.start("server") as server:
        order = Serve(what="headrace", url=url, queue=queue, max_failures=1_000_000_000)
        port = (await server.ask(order, Up, within=START)).port
        connection = await Connection.open(port)

        def token(text: str) -> bytes:
            return look(port, "/v1/jobs", text)

        first, last = changed(good, SECRET_AT), changed(good, len(good) - 1)
        wrong = ("first byte of the secret wrong", token(first)), ("last byte of the secret wrong", token(last))
        unknown = "an id that no token has", token(changed(good, 8))
        hidden = "a job of another tenant", look(port, f"/v1/jobs/{theirs.id}", good)
        none = "a job that is not there", look(port, f"/v1/jobs/{uuid4()}", good)
        found = [
            await compare(connection, *wrong, 401, count),
            await compare(connection, wrong[1], unknown, 401, count),
            await compare(connection, hidden, none, 404, count),
        ]
        connection.close()
    return found


@click.command()
@click.option("--store", default="sqlite", show_default=True, help="As of `make bench`; not memory.")
@click.option("--requests", default=10_000, show_default=True, type=click.IntRange(10), help="Of each kind.")
@click.option("--json", "as_json", is_flag=True)
def main(store: str, requests: int, as_json: bool) -> None:
    """Measure whether durations reveal what is wrong with a token, or the tenant of a job."""
    with stand.open_stand(store, STANDS) as place:
        found = run(measure(place, requests))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for each in found:
        click.echo(f"{each.one}: {each.one_us} µs; {each.other}: {each.other_us} µs")
        click.echo(f"  {each.requests:,} of each, medians {each.difference_percent} % apart, p = {each.p}")


if __name__ == "__main__":
    main()
