-- name: ending
insert into headrace_ending
(lo, hi, state, attempt, failures, crashes, finished_at, result, result_until, note, worker, took)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: failure
insert into headrace_failure (key, attempt, kind, message, traceback, at, worker) values (?, ?, ?, ?, ?, ?, ?);

-- name: failures
-- Failures with the same texts. ?1: JSON array of [key, at].
insert into headrace_failure (key, attempt, kind, message, traceback, at, worker)
select json_extract(value, '$[0]'), ?2, ?3, ?4, ?5, json_extract(value, '$[1]'), ?6 from json_each(?1);

-- name: done
-- Jobs that ended well and told nothing. ?1: JSON array of numbers, each lo << 10 | size - 1.
insert into headrace_ending (lo, hi, state, attempt, failures, crashes, finished_at, worker, took)
select value >> 10, (value >> 10) + (value & 1023), 'done', ?2, ?3, ?4, ?5, ?6, ?7 from json_each(?1);

-- name: runner
select no from headrace_runner where id = ?;

-- name: new_runner
insert into headrace_runner (id, name, at) values (?, '', ?) returning no;

-- name: forget_stops
delete from headrace_stop where token = ?1 and position in (select value from json_each(?2));
