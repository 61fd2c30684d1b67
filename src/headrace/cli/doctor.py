"""`headrace doctor`: lists the settings with their origin, and what should be changed."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import click

from headrace.cli.output import emit, table
from headrace.cli.root import FAILED
from headrace.cli.target import Target, json_option, run, store_command
from headrace.errors import HeadraceError
from headrace.model.records import Finding
from headrace.settings import Origin
from headrace.sink.figures import check_sink
from headrace.store import REDIS_SCHEMES

if TYPE_CHECKING:
    from headrace.store.contract import Store


@click.command()
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
@json_option
@store_command()
def command(target: Target, strict: bool, as_json: bool) -> None:
    """Check the settings and the store, and say what to do."""
    findings = [*_settings(target), *run(_store(target))]
    worst = {finding.level for finding in findings}
    bad = "error" in worst or (strict and "warning" in worst)
    if as_json:
        emit(
            {
                "ok": not bad,
                "settings": [origin._asdict() for origin in _origins(target)],
                "findings": [
                    {"level": finding.level, "about": finding.about, "message": finding.message} for finding in findings
                ],
            }
        )
    else:
        table(("setting", "value", "from"), _origins(target), wrap={"value": 24})
        click.echo()
        table(
            ("", "about", "finding"),
            [(finding.level, finding.about, finding.message) for finding in findings],
            wrap={"finding": 30},
        )
    if bad:
        raise SystemExit(FAILED)


def _origins(target: Target) -> list[Origin]:
    """The settings with the effective `durability`: the URL overrides it, and Redis has its own configuration."""
    url = target.settings.store_url
    if url.partition(":")[0] not in REDIS_SCHEMES:
        return target.settings.explain()
    durability = dict(parse_qsl(url.partition("?")[2])).get("durability")
    return [
        origin
        if origin.name != "durability" or origin.source != "default"
        else origin._replace(
            value="as the server is set" if durability is None else durability,
            source="url" if durability else "default",
        )
        for origin in target.settings.explain()
    ]


def _settings(target: Target) -> list[Finding]:
    problems = target.settings.problems(target.app.tasks if target.app is not None else None)
    findings = [Finding(problem.level, problem.about, problem.message) for problem in problems]
    return findings or [Finding("ok", "settings", "fit together")]


async def _store(target: Target) -> list[Finding]:
    async def look(store: Store) -> list[Finding]:
        findings = [Finding("ok", "store", f"{target.shown_url} answers"), *await store.check()]
        settings = target.settings
        if settings.history_url and not settings.is_remote:
            findings += await check_sink(store, settings.history_url)
        return findings

    try:
        with _silent_store():
            return await target.with_store(look)
    except HeadraceError as error:
        return [Finding("error", "store", str(error))]


@contextmanager
def _silent_store() -> Generator[None]:
    """No log lines of the store, because the table has what they say."""
    log = logging.getLogger("headrace.store")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
