-- name: depth
select d.queue, d.ready, d.scheduled, d.running, d.dead, d.done_total, d.failed_total, d.enqueued_total,
    exists (select 1 from headrace_paused as p where p.queue = d.queue)
from headrace_depth as d
union all
select queue, 0, 0, 0, 0, 0, 0, 0, 1 from headrace_paused where queue not in (select queue from headrace_depth)
order by 1;

-- name: oldest
-- The enqueue time of the job that waits longest in a queue.
select enqueued_at from headrace_batch
where seq = (select min(lo) >> 16 from headrace_ready where queue = ?);

-- name: priority_below
select priority from headrace_ready where queue = ? and priority < ? order by priority desc limit 1;

-- name: head
-- The first lane of a queue and priority after lane (?3, ?4), with its head's enqueue time.
select * from (
    select r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.queue = ?1 and r.priority = ?2 and r.tenant = ?3 and r.lane > ?4
    order by r.lane, r.batch, r.lo limit 1
)
union all
select * from (
    select r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.queue = ?1 and r.priority = ?2 and r.tenant > ?3
    order by r.tenant, r.lane, r.batch, r.lo limit 1
)
limit 1;
