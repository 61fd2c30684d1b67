-- Results with a time to live, so that `prune` can drop their bytes when it is over. What stays is an empty result, which
-- says that there was one; a job without a time to live has no entry.
create index headrace_ending_result on headrace_ending (result_until)
where result_until is not null and length(result) > 0;

-- Workers that were ever there, by a number that is short in every ended range. A name outlives its worker's presence.
create table headrace_runner (
    no integer primary key,
    id blob not null unique,
    name text not null,
    at integer not null
);
-- Whose lease the attempt was in that ended these jobs, and how long before their end it was claimed: a short number, too.
alter table headrace_ending add column worker integer;
alter table headrace_ending add column took integer;

drop view headrace_jobs;
create view headrace_jobs as
select
    b.seq,
    j.key,
    b.id as batch,
    j.key & 65535 as ord,
    j.task,
    j.queue,
    j.priority,
    j.tenant,
    j.limits,
    case
        when e.lo is not null then e.state
        when s.lo is not null then 'scheduled'
        when r.lo is not null then 'ready'
        else 'running'
    end as state,
    coalesce(e.attempt, s.attempt, r.attempt) as attempt,
    coalesce(e.failures, s.failures, r.failures) as failures,
    coalesce(e.crashes, s.crashes, r.crashes) as crashes,
    b.enqueued_at,
    s.run_at,
    e.finished_at,
    coalesce(e.note, s.note, r.note) as note,
    j.payload,
    j.options,
    e.result,
    e.result_until,
    e.worker,
    e.finished_at - e.took as claimed_at
from headrace_batch as b
cross join headrace_job as j on j.key between b.seq << 16 and b.seq << 16 | 65535
left join headrace_ending as e
    on e.lo = (select max(x.lo) from headrace_ending as x where x.lo <= j.key) and e.hi >= j.key
left join headrace_scheduled as s
    on s.lo = (select max(x.lo) from headrace_scheduled as x where x.lo <= j.key) and s.hi >= j.key
left join headrace_queue as q on q.name = j.queue
left join headrace_ready as r
    on r.line = q.id * 4096 + 1000 - j.priority and r.tenant = j.tenant and r.lane = j.lane
    and r.lo = (
        select max(x.lo) from headrace_ready as x
        where x.line = q.id * 4096 + 1000 - j.priority and x.tenant = j.tenant and x.lane = j.lane and x.lo <= j.key
    )
    and r.hi >= j.key;
