"""A database that is used again holds nothing of the test before, and one whose schema was changed is not used again."""

from __future__ import annotations

import psycopg

from databases import Databases

TABLES = """
select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'headrace' and c.relkind = 'r' and c.relname not in ('migration', 'identity')
"""


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        tables = [str(row[0]) for row in connection.execute(TABLES)]
        counts = [connection.execute(f"select count(*) from {table}".encode()).fetchone() for table in tables]
    return sum(int(count[0]) for count in counts if count is not None)


def test_rows_are_gone_also_where_there_are_many(databases: Databases):
    url = databases.take()
    with psycopg.connect(url) as connection:
        connection.execute("select headrace.enqueue('t', '[]') from generate_series(1, 1500)")
        connection.execute("insert into headrace.records (kind, name, value, version) values ('k', 'n', '', 1)")
    assert rows(url) > 3000
    databases.give_back(url)
    again = databases.take()
    assert again == url
    assert rows(again) == 0
    databases.give_back(again)


def test_an_open_transaction_of_an_earlier_test_is_ended(databases: Databases):
    url = databases.take()
    connection = psycopg.connect(url)
    connection.execute("lock table headrace.ready")
    databases.give_back(url)
    assert rows(url) == 0
    connection.close()


def test_a_changed_schema_is_not_used_again(databases: Databases):
    for change in (
        "create table public.mine ()",
        "alter table headrace.worker add column mine int",
        "create or replace function headrace.mine() returns int language sql as 'select 1'",
        "grant usage on schema headrace to public",
        "alter database {name} set statement_timeout = '7s'",
    ):
        url = databases.take()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(change.format(name=connection.info.dbname).encode())
        databases.give_back(url)
        assert databases.take() != url, change


def test_no_dead_row_of_a_waiting_job_is_left(databases: Databases):
    url = databases.take()
    with psycopg.connect(url) as connection:
        connection.execute("select headrace.enqueue('t', '[]') from generate_series(1, 10)")
        connection.execute("delete from headrace.ready")
    databases.give_back(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("select pg_relation_size('headrace.ready')").fetchone() == (0,)
