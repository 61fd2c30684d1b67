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
select min(at) from (
    select min(run_at) as at from headrace_scheduled
    union all select min(run_at) from headrace_blocked where run_at is not null
    union all select 0 from headrace_opening where source >= -9223372036854775807
);
