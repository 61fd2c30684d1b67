-- name: log
-- What was said so far. ?1: JSON array of keys.
select key, progress, doing, log from headrace_report where key in (select value from json_each(?1));

-- name: keep
insert or replace into headrace_report (key, progress, doing, log) values (?, ?, ?, ?);
