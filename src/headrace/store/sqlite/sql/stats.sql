-- name: depth
-- The figures of queues after ?2, at most ?3 of them. ?1: now.
select d.queue, d.ready, d.scheduled, d.running, d.dead, d.done_total, d.failed_total, d.enqueued_total, d.blocked,
    exists (
        select 1 from headrace_pause as p
        where p.kind = 'queue' and p.name = d.queue and (p.until is null or p.until > ?1)
    )
from (select * from headrace_depth where queue > ?2 order by queue limit ?3) as d
union all
select * from (
    select p.name, 0, 0, 0, 0, 0, 0, 0, 0, 1 from headrace_pause as p
    where p.kind = 'queue' and p.name > ?2 and (p.until is null or p.until > ?1)
        and not exists (select 1 from headrace_depth as d where d.queue = p.name)
    order by p.name limit ?3
)
order by 1 limit ?3;

-- name: oldest
-- The enqueue time of the job that waits longest in a queue, among its first ?2 ranges.
select enqueued_at from headrace_batch
where seq = (
    select min(lo) >> 16 from (
        select lo from headrace_ready
        where line >= (select id from headrace_queue where name = ?1) * 4096
            and line < (select id from headrace_queue where name = ?1) * 4096 + 4096
        limit ?2
    )
);

-- name: head
-- The lane of a queue that comes after lane (?3, ?4) of priority ?2, with the enqueue time of its first job. In seeks, as
-- `after` of lanes.sql.
select * from (
    select 1000 - (r.line & 4095), r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and r.tenant = ?3 and r.lane > ?4
    order by r.lane, r.lo limit 1
)
union all
select * from (
    select 1000 - (r.line & 4095), r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and r.tenant > ?3
    order by r.tenant, r.lane, r.lo limit 1
)
union all
select * from (
    select 1000 - (r.line & 4095), r.tenant, r.lane, b.enqueued_at
    from headrace_ready as r cross join headrace_batch as b on b.seq = r.lo >> 16
    where r.line > (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and r.line < (select id from headrace_queue where name = ?1) * 4096 + 4096
    order by r.line, r.tenant, r.lane, r.lo limit 1
)
limit 1;
