-- name: ending
insert into headrace_ending
(lo, hi, state, attempt, failures, crashes, finished_at, result, result_until, note)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: failure
insert into headrace_failure (key, attempt, kind, message, traceback, at, worker) values (?, ?, ?, ?, ?, ?, ?);

-- name: batches
-- (seq, id) of batches. ?1: JSON array.
select seq, id from headrace_batch where seq in (select value from json_each(?1));

-- name: forget_stops
delete from headrace_stop where token = ?1 and position in (select value from json_each(?2));
