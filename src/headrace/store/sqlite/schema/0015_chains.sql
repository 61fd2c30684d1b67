-- Runs of jobs that never ran, of one lane, in which each job waits until the one before it is done, and the first one until the
-- job `lo - 1` is. A row is found by its end, which stays, and its beginning moves on: so an end of a job writes in place, and
-- chains that go on at the same time lie side by side. Rows of such jobs in headrace_blocked mean the same. Processes of an
-- earlier version must be stopped before this step: they do not know what waits here.
create table headrace_chain (
    hi integer primary key,
    lo integer not null,
    line integer not null,          -- as in headrace_ready
    tenant text not null,
    lane integer not null
);

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
        when coalesce(w.lo, c.lo) is not null then 'blocked'
        else 'running'
    end as state,
    coalesce(e.attempt, s.attempt, r.attempt, w.attempt, iif(c.lo is null, null, 0)) as attempt,
    coalesce(e.failures, s.failures, r.failures, w.failures, iif(c.lo is null, null, 0)) as failures,
    coalesce(e.crashes, s.crashes, r.crashes, w.crashes, iif(c.lo is null, null, 0)) as crashes,
    b.enqueued_at,
    coalesce(s.run_at, w.run_at) as run_at,
    e.finished_at,
    coalesce(e.note, s.note, r.note, w.note) as note,
    j.payload,
    coalesce(j.options, b.options) as options,
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
    and r.hi >= j.key
left join headrace_blocked as w
    on w.lo = (select max(x.lo) from headrace_blocked as x where x.lo <= j.key)
    and w.source = (select min(x.source) from headrace_blocked as x where x.lo = w.lo)
    and w.hi >= j.key
left join headrace_chain as c
    on c.hi = (select min(x.hi) from headrace_chain as x where x.hi >= j.key) and c.lo <= j.key;
