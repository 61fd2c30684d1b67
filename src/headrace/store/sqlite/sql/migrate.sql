-- name: known
select 1 from sqlite_schema where name = 'headrace_migration';

-- name: version
select coalesce(max(version), 0) from headrace_migration;

-- name: create
create table if not exists headrace_migration (
    version integer primary key,
    name text not null,
    taken_at integer not null
);

-- name: taken
insert into headrace_migration (version, name, taken_at) values (?, ?, ?);
