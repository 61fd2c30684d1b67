-- name: all
select name, version, concurrency, rate, burst, closed_until, state from headrace_limit order by name;

-- name: version
select version from headrace_limit where name = ?;

-- name: delete
delete from headrace_limit where version = ?;

-- name: insert
insert into headrace_limit (name, concurrency, rate, burst, closed_until, state) values (?, ?, ?, ?, ?, ?);

-- name: changed
-- Grows with every written rule.
select seq from sqlite_sequence where name = 'headrace_limit';

-- name: grow
-- A rule that goes must be noticed, too.
update sqlite_sequence set seq = seq + 1 where name = 'headrace_limit';

-- name: rules
select name, concurrency, rate, burst, closed_until from headrace_limit;

-- name: lanes
-- Lane ids with their limit keys. ?1: JSON array of jobs' keys, one of each lane.
select lane, limits from headrace_job where key in (select value from json_each(?1));

-- name: units
-- The state of limit keys, as one JSON array. ?1: JSON array of keys.
select json_group_array(json_array(key, held, level, at, blocked, full_at))
from headrace_unit where key in (select value from json_each(?1));

-- name: keep
insert or replace into headrace_unit (key, held, level, at, full_at, blocked) values (?, ?, ?, ?, ?, ?);

-- name: forget
-- Keys that hold nothing and whose buckets are full. ?1: JSON array.
delete from headrace_unit where key in (select value from json_each(?1));
