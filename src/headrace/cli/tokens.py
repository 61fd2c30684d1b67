"""`headrace tokens`: the tokens of the server, and what each may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from headrace.cli import params
from headrace.cli.output import age, emit, emit_list, say, table
from headrace.cli.target import Target, json_option, run, store_command
from headrace.model.scope import Scope
from headrace.operate import tokens

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from headrace.operate.operations import Operations
    from headrace.operate.tokens import Token
    from headrace.store.contract import Store


@click.group()
def command() -> None:
    """Create, list and revoke the tokens of the server."""


@command.command()
@click.argument("name", type=params.Checked("name", tokens.check_name))
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="What it may do; may be given several times. admin may do everything.",
)
@click.option("--queue", "queues", multiple=True, type=params.QUEUE, help="Only these queues; the others do not exist.")
@click.option("--tenant", type=params.TENANT, help="Only this tenant's jobs; the others do not exist.")
@click.option("--expires", type=params.DURATION, help='After so long, e.g. "90d" [default: never].')
@json_option
@store_command()
def create(
    target: Target,
    name: str,
    scopes: tuple[str, ...],
    queues: tuple[str, ...],
    tenant: str | None,
    expires: timedelta | None,
    as_json: bool,
) -> None:
    """Make a token and print it: this once, for only its hash is kept."""

    async def act(operations: Operations) -> tuple[str, Token, datetime]:
        text, token = await operations.tokens.create(name, scopes=scopes, queues=queues, tenant=tenant, expires=expires)
        return text, token, await operations.store.now()

    text, token, now = target.operate(act)
    if as_json:
        emit({"token": text, **_document(token, now)})
        return
    click.echo(text)
    say("keep it now: it is not shown again. Send it as the header  Authorization: Bearer hr_…")


@command.command("list")
@json_option
@store_command()
def list_(target: Target, as_json: bool) -> None:
    """Every token, without the token."""

    async def look(store: Store) -> tuple[list[Token], datetime]:
        return await tokens.all(store), await store.now()

    listed, now = run(target.with_store(look))
    if as_json:
        emit_list([_document(token, now) for token in listed])
        return
    if not listed:
        say("no tokens: the server answers this machine only; make one with `headrace tokens create NAME --scope …`")
        return
    headers = ("name", "id", "scopes", "queues", "tenant", "made", "expires", "state")
    rows = [_row(token, now) for token in listed]
    table(headers, rows, cut={"name": 12, "scopes": 12, "queues": 12, "tenant": 12}, drop=("made", "id", "expires"))


@command.command()
@click.argument("name_or_id", metavar="NAME|ID")
@click.option(
    "--forget", is_flag=True, help="Also delete its record. Without any token, the server is open to this machine."
)
@json_option
@store_command()
def revoke(target: Target, name_or_id: str, forget: bool, as_json: bool) -> None:
    """Make a token worthless; running servers refuse it within a second."""

    async def act(operations: Operations) -> tuple[Token, datetime]:
        return await operations.tokens.revoke(name_or_id, forget=forget), await operations.store.now()

    token, now = target.operate(act)
    if as_json:
        emit(_document(token, now))
    else:
        click.echo(f"{tokens.label(token)}: {'forgotten' if forget else 'revoked'}")


def _document(token: Token, now: datetime) -> dict[str, Any]:
    return msgspec.structs.asdict(tokens.shown(token, now))


def _row(token: Token, now: datetime) -> tuple[object, ...]:
    return (
        token.name,
        token.id,
        ", ".join(sorted(token.scopes)),
        "all" if token.queues is None else ", ".join(sorted(token.queues)),
        "all" if token.tenant is None else token.tenant,
        age(token.created_at, now),
        "never" if token.expires_at is None else age(token.expires_at, now),
        token.state(now),
    )
