-- Gates: what jobs can wait for. A *source* is what something waits for or what counts: a job's key, or minus the number of a
-- gate. So jobs and gates share the columns and the indexes.
alter table headrace_depth add column blocked integer not null default 0;

create table headrace_gate (
    no integer primary key autoincrement,
    id blob not null unique,        -- the UUID, 16 bytes
    queue text not null,
    label text not null,
    tenant text not null,
    sealed integer not null,
    signalled integer not null,     -- 1: it waits for a signal, or has got it
    size integer not null,
    done integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    told text,                      -- how it ended as a member of other gates: done, dead, cancelled; null: it has not
    value blob,
    made_at integer not null,
    changed_at integer not null,
    kept_until integer              -- set by a signal
);
create index headrace_gate_changed on headrace_gate (changed_at);
create index headrace_gate_label on headrace_gate (id) where label <> '';

-- Members: the sources from `first` to `last`, which never leave their batch.
create table headrace_edge (
    gate integer not null,
    first integer not null,
    last integer not null,
    primary key (gate, first)
) without rowid;
create index headrace_edge_first on headrace_edge (first);
-- Runs that begin before the job that is looked for.
create index headrace_edge_long on headrace_edge (first, last) where last > first;

-- Runs of jobs that wait for a source. A job that ran before, and is suspended, is a run of one and may have several rows.
create table headrace_blocked (
    lo integer not null,
    source integer not null,
    hi integer not null,
    needs text not null,            -- done, ended, failed
    delay integer,                  -- from the release to the time at which the jobs may run
    due integer,                    -- or that time itself
    run_at integer,                 -- released by then at the latest
    queue text not null,
    priority integer not null,
    tenant text not null,
    lane integer not null,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    suspect integer not null,
    note text,
    primary key (lo, source)
) without rowid;
create index headrace_blocked_source on headrace_blocked (source, needs);
create index headrace_blocked_due on headrace_blocked (run_at) where run_at is not null;

-- Sources whose followers were too many for one transaction. `promote` continues.
create table headrace_opening (
    source integer primary key
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
        when w.lo is not null then 'blocked'
        else 'running'
    end as state,
    coalesce(e.attempt, s.attempt, r.attempt, w.attempt) as attempt,
    coalesce(e.failures, s.failures, r.failures, w.failures) as failures,
    coalesce(e.crashes, s.crashes, r.crashes, w.crashes) as crashes,
    b.enqueued_at,
    coalesce(s.run_at, w.run_at) as run_at,
    e.finished_at,
    coalesce(e.note, s.note, r.note, w.note) as note,
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
    and r.hi >= j.key
left join headrace_blocked as w
    on w.lo = (select max(x.lo) from headrace_blocked as x where x.lo <= j.key)
    and w.source = (select min(x.source) from headrace_blocked as x where x.lo = w.lo)
    and w.hi >= j.key;
