-- name: seq
select seq from headrace_batch where id = ?;

-- name: job
-- One job as the view shows it. ?1: its batch's seq, ?2: its key.
select key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
    finished_at, note, payload, options, result, result_until, worker, claimed_at
from headrace_jobs where seq = ?1 and key = ?2;

-- name: history
-- Every failure, oldest first. ?1: JSON array of keys.
select key, attempt, kind, message, traceback, at, worker
from headrace_failure where key in (select value from json_each(?1)) order by id;

-- name: runners
-- Workers by their numbers. ?1: JSON array.
select no, id, name from headrace_runner where no in (select value from json_each(?1));

-- name: name
select name from headrace_runner where id = ?;
