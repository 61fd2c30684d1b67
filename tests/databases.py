"""PostgreSQL databases for tests: copied from a migrated one, emptied and used again while their schema is untouched."""

from __future__ import annotations

from typing import Any

import psycopg

from servers.postgres import PostgresServer

_EMPTY = """
-- Two tables stay: a fresh schema holds its version and its identity.
do $$
declare
    leaf regclass;
    rows int8;
begin
    for leaf in
        select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'headrace' and c.relkind = 'r' and c.relname not in ('migration', 'identity')
    loop
        execute format('select count(*) from (select from %s limit 1001) first', leaf) into rows;
        -- Deleting a few rows is much quicker than truncating, which makes new files. But rows of jobs that waited leave
        -- dead index entries behind, and a claim that meets many of them searches in another way for a while.
        if rows > 1000 or (leaf in ('headrace.ready'::regclass, 'headrace.scheduled'::regclass) and pg_relation_size(leaf) > 0) then
            execute format('truncate %s', leaf);
        elsif rows > 0 then
            execute format('delete from %s', leaf);
        end if;
    end loop;
end $$
"""

_SHAPE = """
select md5(string_agg(line, ',' order by line)) from (
    select format('class %s %s %s %s %s %s', c.relnamespace, c.relname, c.relkind, c.relacl, c.reloptions, c.relowner)
    from pg_class c where c.oid >= 16384 and c.relnamespace <> 99
    union all select format('column %s %s %s %s %s', a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull, a.attacl)
    from pg_attribute a where a.attrelid >= 16384 and a.attnum > 0
    union all select format('function %s %s %s', p.oid::regprocedure, md5(p.prosrc), p.proacl) from pg_proc p where p.oid >= 16384
    union all select format('constraint %s %s', k.conrelid::regclass, pg_get_constraintdef(k.oid))
    from pg_constraint k where k.oid >= 16384
    union all select format('trigger %s %s', t.tgrelid::regclass, t.tgname) from pg_trigger t
    union all select format('schema %s %s', n.nspname, n.nspacl) from pg_namespace n
    union all select format('extension %s', e.extname) from pg_extension e
    union all select format('setting %s', s.setconfig) from pg_db_role_setting s
    where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
    union all select format('database %s', d.datacl) from pg_database d where d.datname = current_database()
    union all select format('migration %s', m.version) from headrace.migration m
) as shape (line)
"""
"""Everything of a database that a test can change and that emptying its tables does not put right."""


class Databases:
    """Copying a database takes a hundred times longer than emptying one, and nearly every test leaves the schema alone."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        with psycopg.connect(template, autocommit=True) as connection:
            self._shape = _shape(connection)
        assert self._shape is not None
        self._free: list[str] = []

    def take(self) -> str:
        """The URL of a migrated, empty database."""
        return self._free.pop() if self._free else self._server.create_database(template=self._template)

    def give_back(self, url: str) -> None:
        """Empty it for the next test, or drop it where a test has changed more than rows."""
        if self._emptied(url) == self._shape:
            self._free.append(url)
        else:
            self._server.drop_database(url)

    def empty(self, url: str) -> str:
        """The same database without its rows."""
        if self._emptied(url, shape=False) is None:
            raise AssertionError("the test has removed the headrace schema")
        return url

    def _emptied(self, url: str, *, shape: bool = True) -> str | None:
        """Empty a database, and tell its shape on the same connection. None: it cannot be emptied."""
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                # What a test has left open would hold locks, or write into the next test.
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
                connection.execute(_EMPTY)
                connection.execute("select pg_stat_reset()")
                return _shape(connection) if shape else ""
        except psycopg.OperationalError:
            return None  # the test has stopped the server, or refused connections to this database


def _shape(connection: psycopg.Connection[Any]) -> str | None:
    try:
        row = connection.execute(_SHAPE).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return None if row is None else str(row[0])
