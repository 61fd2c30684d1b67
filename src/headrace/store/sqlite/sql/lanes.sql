-- name: jobs
-- Of a lane: its ranges, the jobs in them and the first job, looking at no more than ?5 ranges.
select count(*), sum(hi - lo + 1), min(lo) from (
    select lo, hi from headrace_ready
    where line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and tenant = ?3 and lane = ?4
    order by lo limit ?5
);

-- name: enqueued_at
select enqueued_at from headrace_batch where seq = ?;

-- name: after
-- The lane that comes after lane (?3, ?4) of priority ?2. In seeks: SQLite uses only the first column of a row comparison
-- here, and would walk through the whole of a long lane.
select * from (
    select 1000 - (line & 4095), tenant, lane from headrace_ready
    where line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and tenant = ?3 and lane > ?4
    order by lane limit 1
)
union all
select * from (
    select 1000 - (line & 4095), tenant, lane from headrace_ready
    where line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and tenant > ?3
    order by tenant, lane limit 1
)
union all
select * from (
    select 1000 - (line & 4095), tenant, lane from headrace_ready
    where line > (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
        and line < (select id from headrace_queue where name = ?1) * 4096 + 4096
    order by line, tenant, lane limit 1
)
limit 1;
