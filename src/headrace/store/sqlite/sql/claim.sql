-- name: top
-- The highest priority that waits in a queue, unless it is paused.
select priority from headrace_ready
where queue = ?1 and not exists (select 1 from headrace_paused where queue = ?1)
order by priority desc limit 1;

-- name: lane_after
-- The lane that comes after lane (?3, ?4). In two seeks: SQLite uses only the first column of a row comparison here, and
-- would walk through the whole of a long lane.
select * from (
    select tenant, lane from headrace_ready
    where queue = ?1 and priority = ?2 and tenant = ?3 and lane > ?4
    order by lane limit 1
)
union all
select * from (
    select tenant, lane from headrace_ready
    where queue = ?1 and priority = ?2 and tenant > ?3
    order by tenant, lane limit 1
)
limit 1;

-- name: ranges
-- A lane from its head on.
select batch, lo, hi, attempt, failures, crashes, suspect from headrace_ready
where queue = ? and priority = ? and tenant = ? and lane = ?
order by batch, lo;

-- name: take
-- Ranges of a lane up to and with one of them.
delete from headrace_ready
where queue = ? and priority = ? and tenant = ? and lane = ? and (batch, lo) <= (?, ?);

-- name: shorten
-- The first jobs of a range are taken.
update headrace_ready set lo = ?
where queue = ? and priority = ? and tenant = ? and lane = ? and batch = ? and lo = ?;

-- name: jobs
-- What a worker needs of each job, in the order asked. ?1: JSON array of keys.
select b.id, b.enqueued_at, j.task, j.payload, j.options
from json_each(?1) as k
cross join headrace_job as j on j.key = k.value
cross join headrace_batch as b on b.seq = k.value >> 16;
