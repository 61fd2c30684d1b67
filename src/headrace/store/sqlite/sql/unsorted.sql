-- name: append
insert into headrace_unsorted (runs, attempt, failures, crashes, finished_at, worker, took) values (?, ?, ?, ?, ?, ?, ?);

-- name: all
-- Each settlement as an ended range has it from `attempt` on, behind its runs.
select runs, attempt, failures, crashes, finished_at, null, null, null, worker, took from headrace_unsorted order by seq;

-- name: ranges
-- Ended ranges from a time on, as `ranges` in ended.sql has them.
select u.finished_at, b.id, r.value >> 10, (r.value >> 10) + (r.value & 1023)
from headrace_unsorted as u cross join json_each(u.runs) as r cross join headrace_batch as b on b.seq = r.value >> 26
where u.finished_at >= ?;

-- name: any
select 1 from headrace_unsorted limit 1;

-- name: sort_in
-- In the order of the settlements, which is that of the index of times. In the order of the jobs it would take half as long again.
insert into headrace_ending (lo, hi, state, attempt, failures, crashes, finished_at, worker, took)
select r.value >> 10, (r.value >> 10) + (r.value & 1023), 'done', u.attempt, u.failures, u.crashes, u.finished_at, u.worker, u.took
from headrace_unsorted as u cross join json_each(u.runs) as r order by u.seq;

-- name: clear
delete from headrace_unsorted;
