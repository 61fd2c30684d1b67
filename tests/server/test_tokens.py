"""Tokens: how they are made, kept, listed and revoked; and their commands."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.root import root
from headrace.errors import ConfigError
from headrace.model.scope import Scope
from headrace.operate import tokens
from headrace.store import connect
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock


@pytest.fixture(params=["memory", "sqlite"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_s39_a_token_is_shown_once_and_kept_as_its_hash(store: Store) -> None:
    text, token = await tokens.create(store, "ci", scopes=["enqueue", "read"])
    assert re.fullmatch(r"hr_[0-9A-Za-z]{12}_[0-9A-Za-z]{27}", text)
    assert len(text.rpartition("_")[2]) * math.log2(62) >= 128
    assert tokens.id_of(text.encode()) == token.id
    records = await store.records("token")
    assert list(records) == [token.id]
    kept = records[token.id].value
    assert text.rpartition("_")[2].encode() not in kept
    assert hashlib.sha256(text.encode()).digest() in kept
    assert tokens.read(records) == {token.id: token}
    assert token.scopes == {Scope.ENQUEUE, Scope.READ}
    assert (token.queues, token.tenant, token.expires_at) == (None, None, None)


async def test_no_two_tokens_are_alike(store: Store) -> None:
    made = [(await tokens.create(store, f"t{n}", scopes=["read"]))[0] for n in range(50)]
    assert len({text.rpartition("_")[2] for text in made}) == 50
    assert len(await tokens.all(store)) == 50


async def test_what_a_token_is_bound_to_is_kept(store: Store, clock: FakeClock) -> None:
    _, token = await tokens.create(
        store, "w", scopes=[Scope.WORK], queues=["mail", "billing"], tenant="acme", expires="90d"
    )
    assert (token.queues, token.tenant) == (frozenset({"mail", "billing"}), "acme")
    assert token.expires_at == token.created_at + timedelta(days=90)
    assert token.state(await store.now()) == "good"
    clock.advance(timedelta(days=90))
    assert token.state(await store.now()) == "expired"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a b", {"scopes": ["read"]}, "not a valid token name"),
        ("", {"scopes": ["read"]}, "not a valid token name"),
        ("x" * 64, {"scopes": ["read"]}, "not a valid token name"),
        ("a\nb", {"scopes": ["read"]}, "not a valid token name"),
        ("ok", {"scopes": []}, "needs a scope"),
        ("ok", {"scopes": ["root"]}, "the scopes are enqueue, work, read, operate, admin"),
        ("ok", {"scopes": ["read"], "queues": ["UP"]}, "not a valid queue name"),
        ("ok", {"scopes": ["read"], "tenant": "a b"}, "not a valid tenant"),
        ("ok", {"scopes": ["read"], "tenant": ""}, "name the tenant"),
        ("ok", {"scopes": ["read"], "expires": "soon"}, "not a duration"),
        ("ok", {"scopes": ["read"], "expires": "0s"}, "never be valid"),
    ],
)
async def test_nonsense_is_refused(store: Store, name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        await tokens.create(store, name, **options)
    assert not await tokens.any(store)


async def test_a_name_is_good_for_one_token_at_a_time(store: Store) -> None:
    _, first = await tokens.create(store, "ci", scopes=["read"])
    with pytest.raises(ConfigError, match=f"already, {first.id}: revoke it first"):
        await tokens.create(store, "ci", scopes=["read"])
    assert (await tokens.revoke(store, "ci")).id == first.id
    _, second = await tokens.create(store, "ci", scopes=["read"])
    assert (await tokens.revoke(store, "ci")).id == second.id
    with pytest.raises(ConfigError, match="give one of the ids"):
        await tokens.revoke(store, "ci")
    assert (await tokens.revoke(store, first.id, forget=True)).id == first.id
    assert [token.id for token in await tokens.all(store)] == [second.id]


async def test_a_revoked_token_still_closes_the_door(store: Store) -> None:
    assert not await tokens.any(store)
    await tokens.create(store, "ci", scopes=["read"])
    await tokens.revoke(store, "ci")
    assert await tokens.any(store)
    (kept,) = await tokens.all(store)
    assert kept.state(await store.now()) == "revoked"
    await tokens.revoke(store, "ci", forget=True)
    assert not await tokens.any(store)
    with pytest.raises(ConfigError, match="tokens list"):
        await tokens.revoke(store, "ci")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hr_",
        b"hr__",
        b"hr_0123456789ab_",
        b"hr_0123456789ab_tooshort",
        b"xx_0123456789ab_" + b"a" * 27,
        b"hr_0123456789ab_" + b"a" * 27 + b"\n",
        b"hr_0123456789ab_" + b"a" * 1_000_000,
        "hr_0123456789äb_".encode() + b"a" * 27,
        b"\xff\x00",
    ],
)
def test_what_is_no_token(text: bytes) -> None:
    assert tokens.id_of(text) is None


# ── the commands ─────────────────────────────────────────────────────────────


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_APP", raising=False)
    monkeypatch.setenv("HEADRACE_URL", f"sqlite:///{tmp_path}/jobs.db")
    assert call("migrate").exit_code == 0
    return f"sqlite:///{tmp_path}/jobs.db"


def call(*args: str) -> Result:
    return CliRunner().invoke(root, list(args))


def stored(url: str) -> list[bytes]:
    async def look() -> list[bytes]:
        store = connect(url)
        await store.open()
        try:
            return [record.value for record in (await store.records("token")).values()]
        finally:
            await store.close()

    return asyncio.run(look())


def test_create_list_revoke(url: str, tmp_path: Path) -> None:
    made = call(
        "tokens", "create", "ci", "--scope", "enqueue", "--scope", "read", "--queue", "mail", "--tenant", "acme",
        "--expires", "90d",
    )  # fmt: skip
    assert made.exit_code == 0
    text = made.stdout.strip()
    assert tokens.id_of(text.encode()) is not None
    assert "not shown again" in made.stderr
    assert text not in made.stderr
    assert hashlib.sha256(text.encode()).digest() in stored(url)[0]
    # Neither the database nor what stands beside it has the token itself.
    assert not any(text.rpartition("_")[2].encode() in file.read_bytes() for file in tmp_path.iterdir())

    (listed,) = json.loads(call("tokens", "list", "--json").stdout)["items"]
    assert (listed["name"], listed["scopes"], listed["queues"]) == ("ci", ["enqueue", "read"], ["mail"])
    assert (listed["tenant"], listed["state"]) == ("acme", "good")
    table = call("tokens", "list").stdout
    assert listed["id"] in table
    assert text not in table

    assert call("tokens", "revoke", listed["id"]).stdout == f"ci ({listed['id']}): revoked\n"
    (listed,) = json.loads(call("tokens", "list", "--json").stdout)["items"]
    assert listed["state"] == "revoked"
    assert json.loads(call("tokens", "revoke", "ci", "--forget", "--json").stdout)["name"] == "ci"
    assert json.loads(call("tokens", "list", "--json").stdout)["items"] == []
    assert "tokens create" in call("tokens", "list").stderr

    entries = json.loads(call("audit", "--json").stdout)["items"]
    assert [entry["action"] for entry in entries] == ["tokens.revoke", "tokens.revoke", "tokens.create"]
    assert text not in json.dumps(entries)


def test_json_has_the_token_once(url: str) -> None:
    made = json.loads(call("tokens", "create", "ci", "--scope", "admin", "--json").stdout)
    assert tokens.id_of(made["token"].encode()) == made["id"]
    assert "token" not in json.loads(call("tokens", "list", "--json").stdout)["items"][0]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("create", "ci"), 2, "--scope"),
        (("create", "ci", "--scope", "root"), 2, "root"),
        (("create", "a b", "--scope", "read"), 2, "not a valid token name"),
        (("create", "ci", "--scope", "read", "--queue", "$(touch x)"), 2, "not a valid queue name"),
        (("create", "ci", "--scope", "read", "--expires", "tomorrow"), 2, "not a duration"),
        (("revoke", "nobody"), 78, "tokens list"),
    ],
)
def test_mistakes_are_named(url: str, args: tuple[str, ...], code: int, words: str) -> None:
    result = call("tokens", *args)
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
    assert words in result.stderr
