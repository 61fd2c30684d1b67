"""Calls by named arguments: what the store sends is what the functions of a real server take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.store.postgres import arguments as arguments_module
from headrace.store.postgres.arguments import CALLS, Arguments, call, fields, types
from headrace.store.postgres.store import PostgresStore
from headrace.store.postgres.verbs.detach import DetachArgs

_PARAMETERS = """
select array_agg(p.proargnames[u.o] order by u.o) as names, array_agg(format_type(u.type, null) order by u.o) as types,
    max(p.pronargdefaults) as optional
from pg_proc p cross join lateral unnest(p.proargtypes::oid[]) with ordinality u(type, o)
where p.pronamespace = 'headrace'::regnamespace and p.proname = $1
group by p.oid"""


@pytest.fixture
def url(postgres_template: str) -> str:
    """These tests only ask which functions there are, so they need no database of their own."""
    return postgres_template


@pytest.mark.parametrize(("function", "arguments"), CALLS.items(), ids=CALLS)
async def test_the_fields_are_the_parameters_of_the_function(function: str, arguments: Arguments, sql: Any):
    [found] = await sql.fetch(_PARAMETERS, function)
    parameters = dict(zip(found["names"], found["types"], strict=True))
    named = dict(zip(fields(arguments), types(arguments), strict=True))
    assert {name: parameters.get(name) for name in named} == named
    required = found["names"][: len(found["names"]) - found["optional"]]
    assert set(required) <= named.keys()


def test_no_function_is_called_with_arguments_by_their_position():
    """An argument that was added in the middle of a list of places would shift all that follow."""
    package = Path(arguments_module.__file__).parent
    found = {path.name for path in package.rglob("*.py") if re.search(r"headrace\.\w+\(\$1, ", path.read_text("utf-8"))}
    assert found == set()


def test_a_call_names_each_argument():
    assert call("detach", DetachArgs) == (
        "select * from headrace.detach(p_token => $1, p_position => $2, p_fresh => $3)"
    )


async def test_a_server_takes_every_call(pg: PostgresStore, sql: Any):
    """The server resolves the names when it prepares the statement."""
    for function, arguments in CALLS.items():
        prepared = await sql.prepare(call(function, arguments))
        assert len(prepared.get_parameters()) == len(fields(arguments))
