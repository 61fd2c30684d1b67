-- name: depth
select d.queue, d.ready, d.scheduled, d.running, d.dead, d.done_total, d.failed_total, d.enqueued_total,
    exists (
        select 1 from headrace_pause as p
        where p.kind = 'queue' and p.name = d.queue and (p.until is null or p.until > ?1)
    )
from headrace_depth as d
union all
select name, 0, 0, 0, 0, 0, 0, 0, 1 from headrace_pause
where kind = 'queue' and (until is null or until > ?1) and name not in (select queue from headrace_depth)
order by 1;

-- name: oldest
-- The enqueue time of the job that waits longest in a queue.
select enqueued_at from headrace_batch
where seq = (select min(lo) >> 16 from headrace_ready
    where line >= (select id from headrace_queue where name = ?1) * 4096
        and line < (select id from headrace_queue where name = ?1) * 4096 + 4096);

-- name: priority_below
select 1000 - (line & 4095) from headrace_ready
where line > (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
    and line < (select id from headrace_queue where name = ?1) * 4096 + 4096
order by line limit 1;

-- name: head
-- The first lane of a queue and priority after lane (?3, ?4), with its head's enqueue time.
select * from (
    select r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and r.tenant = ?3 and r.lane > ?4
    order by r.lane, r.lo limit 1
)
union all
select * from (
    select r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and r.tenant > ?3
    order by r.tenant, r.lane, r.lo limit 1
)
limit 1;
