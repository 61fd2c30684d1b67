-- name: due
-- What is due, the earliest first.
select queue, priority, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note
from headrace_scheduled where run_at <= ? order by run_at, lo limit ?;

-- name: leave
-- A range of which nothing stays.
delete from headrace_scheduled where lo = ?;

-- name: shorten
-- The first jobs of a range have moved.
update headrace_scheduled set lo = ? where lo = ?;

-- name: next
select min(run_at) from headrace_scheduled;
