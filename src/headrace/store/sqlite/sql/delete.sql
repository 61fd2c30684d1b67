-- name: job
delete from headrace_job where key = ?;

-- name: failures
delete from headrace_failure where key = ?;

-- name: lock
delete from headrace_unique where key = ?;

-- name: report
delete from headrace_report where key = ?;

-- name: steps
delete from headrace_step where key = ?;

-- name: hollow
-- A batch is remembered until the next prune, so that a repeated enqueue meets it.
update headrace_batch set hollow = 1
where seq = ?1 and not exists (select 1 from headrace_job where key between ?1 << 16 and ?1 << 16 | 65535);
