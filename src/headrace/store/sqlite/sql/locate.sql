-- name: job
-- Where a job's row and lane are: (queue, priority, tenant, lane), if it exists.
select j.queue, j.priority, j.tenant, j.lane
from headrace_job as j where j.key = ?;

-- name: seq
select seq from headrace_batch where id = ?;

-- name: ending
-- The ended range that may hold a key.
select lo, hi, state, attempt, failures, crashes, finished_at, result, result_until, note, worker, took
from headrace_ending where lo <= ? order by lo desc limit 1;

-- name: scheduled
select lo, hi, attempt, failures, crashes, suspect, note, run_at
from headrace_scheduled where lo <= ? order by lo desc limit 1;

-- name: ready
select lo, hi, attempt, failures, crashes, suspect, note
from headrace_ready
where line = (select id from headrace_queue where name = ?) * 4096 + 1000 - ?
    and tenant = ? and lane = ? and lo <= ?
order by lo desc limit 1;

-- name: drop_ending
delete from headrace_ending where lo = ?;

-- name: drop_scheduled
delete from headrace_scheduled where lo = ?;

-- name: drop_ready
delete from headrace_ready
where line = (select id from headrace_queue where name = ?) * 4096 + 1000 - ?
    and tenant = ? and lane = ? and lo = ?;

-- name: blocked
-- The run that waits and may hold a key. A suspended job has several such rows, alike but for what it waits for.
select lo, hi, attempt, failures, crashes, suspect, note
from headrace_blocked where lo <= ? order by lo desc limit 1;

-- name: blocked_rows
select source, needs, delay, due, run_at from headrace_blocked where lo = ?;

-- name: drop_blocked
delete from headrace_blocked where lo = ?;
