"""How constant reads of figures affect claims: `python -m benchmarks.http.polled`.

Three cases take turns: claims without reads, claims during reads of a bare server in another process, and claims during
reads of this server. So other load of the machine affects all of them, and the cost of reads for the machine is known
apart from their cost for the server.
"""

from __future__ import annotations

import secrets
import statistics

import click
import msgspec

from benchmarks.http.helper import Helper
from benchmarks.http.orders import Claims, Driven, Held, Poll, Polled, Rest, Serve, Up
from benchmarks.http.run import START
from benchmarks.stand import STANDS
from headrace.bench import stand
from headrace.bench.fork_server import BenchFailed
from headrace.bench.load import TEXT, Load
from headrace.bench.result import median, percentile
from headrace.runtime.event_loop import run

PATHS = ["/v1/stats", "/v1/queues", "/v1/workers", "/v1/pauses", "/metrics"]
ALL = 1_000_000
"""Reads per second that are allowed where none must be refused."""


class Felt(msgspec.Struct, kw_only=True):
    """Claims with and without reads."""

    store: str
    claims: int
    """Per turn."""
    turns: int
    polls_per_s: float
    refused_percent: float
    """Share of the reads that got 429."""
    alone_p50_ms: float
    beside_p50_ms: float
    """During reads of the bare server."""
    polled_p50_ms: float
    alone_p99_ms: float
    beside_p99_ms: float
    polled_p99_ms: float
    p99_over_alone: float
    """The median of the turns' ratios."""
    p99_over_beside: float


async def measure(
    place: stand.Stand, claims: int, turns: int, rate: float, *, refuse: bool, direct: bool = False
) -> Felt:
    """Measure in turns. Without `refuse` every read is answered. `direct`: claims in the store, not over HTTP."""
    url, queue = place.fresh(), f"bench-polled-{secrets.token_hex(3)}"
    await stand.prepare(url)
    await _fill(url, queue, claims * (3 * turns + 1))
    alone: list[Driven] = []
    beside: list[Driven] = []
    under: list[Driven] = []
    looked: list[Polled] = []
    async with (
        Helper.start("server") as server,
        Helper.start("server") as other,
        Helper.start("client") as worker,
        Helper.start("client") as viewer,
    ):
        serve = Serve(what="headrace", url=url, queue=queue, max_polls=None if refuse else ALL)
        port = (await server.ask(serve, Up, within=START)).port
        bare = (await other.ask(Serve(what="bare", url="", queue=queue), Up, within=START)).port
        here = Poll(port=port, paths=PATHS, rate=rate)
        there = Poll(port=bare, paths=PATHS, rate=rate, at="nothing")

        async def claim() -> Driven:
            order = Claims(port=port, queue=queue, count=claims, url=url if direct else "")
            return await worker.ask(order, Driven, within=60 + claims / 20)

        await claim()  # connects, and plans statements
        for _ in range(turns):
            alone.append(await claim())
            await viewer.ask(there, Held, within=START)
            beside.append(await claim())
            await viewer.ask(Rest(), Polled, within=START)
            await viewer.ask(here, Held, within=START)
            under.append(await claim())
            looked.append(await viewer.ask(Rest(), Polled, within=START))
    answered = sum(each.answered for each in looked)
    return Felt(
        store=place.engine,
        claims=claims,
        turns=turns,
        polls_per_s=round(answered / sum(each.seconds for each in looked), 1),
        refused_percent=round(100 * sum(each.refused for each in looked) / answered, 1),
        alone_p50_ms=_ms(alone, 0.5),
        beside_p50_ms=_ms(beside, 0.5),
        polled_p50_ms=_ms(under, 0.5),
        alone_p99_ms=_ms(alone, 0.99),
        beside_p99_ms=_ms(beside, 0.99),
        polled_p99_ms=_ms(under, 0.99),
        p99_over_alone=_over(under, alone),
        p99_over_beside=_over(under, beside),
    )


async def _fill(url: str, queue: str, count: int) -> None:
    load = Load(url, queue)
    for first in range(0, count, 1000):
        await load.app.aenqueue_many([load.noop.job(TEXT) for _ in range(min(1000, count - first))])
    await load.app.aclose()


def _at(driven: Driven, share: float) -> float:
    found = percentile(driven.samples, share)
    if found is None:
        raise BenchFailed("no claim was made")
    return found


def _over(these: list[Driven], those: list[Driven]) -> float:
    return round(statistics.median(_at(a, 0.99) / _at(b, 0.99) for a, b in zip(these, those, strict=True)), 2)


def _ms(turns: list[Driven], share: float) -> float:
    return round(1000 * (median([_at(each, share) for each in turns]) or 0.0), 3)


@click.command()
@click.option("--store", default="sqlite", show_default=True, help="As of `make bench`; not memory.")
@click.option("--claims", default=3000, show_default=True, type=click.IntRange(10), help="Per turn.")
@click.option("--turns", default=7, show_default=True, type=click.IntRange(1))
@click.option("--rate", default=1000.0, show_default=True, help="Reads per second.")
@click.option("--direct", is_flag=True, help="Claims in the store, as workers beside the server do; not over HTTP.")
@click.option("--json", "as_json", is_flag=True)
def main(store: str, claims: int, turns: int, rate: float, direct: bool, as_json: bool) -> None:
    """Measure how constant reads of figures affect claims."""
    with stand.open_stand(store, STANDS) as place:
        found = [run(measure(place, claims, turns, rate, refuse=refuse, direct=direct)) for refuse in (True, False)]
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for each in found:
        click.echo(f"{each.store}: {each.polls_per_s:,.0f} reads a second, {each.refused_percent} % of them refused")
        click.echo(f"  claims without reads       p50 {each.alone_p50_ms} ms, p99 {each.alone_p99_ms} ms")
        click.echo(f"  reads of another process   p50 {each.beside_p50_ms} ms, p99 {each.beside_p99_ms} ms")
        click.echo(f"  reads of this server       p50 {each.polled_p50_ms} ms, p99 {each.polled_p99_ms} ms")
        click.echo(f"  p99 {each.p99_over_beside} × that of reads elsewhere, {each.p99_over_alone} × that of none")


if __name__ == "__main__":
    main()
