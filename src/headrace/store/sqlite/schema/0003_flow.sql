-- Flow: tenants that take turns, limits, unique locks, pauses of more than queues, and what running tasks report.
-- Processes of an earlier version must be stopped before this step: the order of the line changes.

drop view headrace_jobs;

-- Queues as numbers: a name in every row of the line would make it half as long again. They stay for good.
create table headrace_queue (
    id integer primary key,
    name text not null unique
);
insert into headrace_queue (name) select distinct queue from headrace_job order by queue;

-- The order in a lane is the order of enqueue calls, which is the order of keys: the batch's id need not be in the line.
-- With many tenants the line's rows are what is written most, and they are half as long without it and the queue's name.
create table headrace_ready_new (
    line integer not null,          -- a queue and a priority, higher ones first: queue.id * 4096 + 1000 - priority
    tenant text not null,
    lane integer not null,
    lo integer not null,
    hi integer not null,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    suspect integer not null,
    note text,
    primary key (line, tenant, lane, lo)
) without rowid;
insert into headrace_ready_new
select q.id * 4096 + 1000 - r.priority, r.tenant, r.lane, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect, r.note
from headrace_ready as r cross join headrace_queue as q on q.name = r.queue order by 1, 2, 3, 4;
drop table headrace_ready;
alter table headrace_ready_new rename to headrace_ready;

create table headrace_scheduled_new (
    lo integer primary key,
    hi integer not null,
    run_at integer not null,
    queue text not null,
    priority integer not null,
    tenant text not null,
    lane integer not null,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    suspect integer not null,
    note text
);
insert into headrace_scheduled_new
select lo, hi, run_at, queue, priority, tenant, lane, attempt, failures, crashes, suspect, note from headrace_scheduled;
drop table headrace_scheduled;
alter table headrace_scheduled_new rename to headrace_scheduled;
create index headrace_scheduled_due on headrace_scheduled (run_at);

-- Taking many ranges out of the line in one statement. `insert` here what goes: all of the tenants from `first` to `last`
-- (lane null); or of one lane what begins before `upto`, and if `rest` is not null, the range that begins with `upto` begins
-- with `rest` from now on. A `delete … where (…) in (…)` would walk through the whole line.
create view headrace_take as
select line, tenant as first, tenant as last, lane, lo as upto, lo as rest from headrace_ready;
create trigger headrace_taking instead of insert on headrace_take begin
    delete from headrace_ready
    where new.lane is null and line = new.line and tenant >= new.first and tenant <= new.last;
    delete from headrace_ready
    where new.lane is not null and line = new.line and tenant = new.first and lane = new.lane and lo < new.upto;
    update headrace_ready set lo = new.rest
    where new.rest is not null and line = new.line and tenant = new.first and lane = new.lane and lo = new.upto;
end;

-- Lines that ever had jobs with limit keys: in all others a tenant has one lane.
create table headrace_limited (
    line integer primary key
);
insert into headrace_limited
select distinct q.id * 4096 + 1000 - j.priority
from headrace_job as j cross join headrace_queue as q on q.name = j.queue where j.lane <> 0;

-- Rules by the limit's name or the whole key. A version is never used again, hence autoincrement; the number it has come
-- to also says whether any rule has changed.
create table headrace_limit (
    version integer primary key autoincrement,
    name text not null,
    concurrency integer,
    rate real,
    burst real not null,
    closed_until integer,
    state blob not null
);
create unique index headrace_limit_name on headrace_limit (name);

-- Limit keys in use: exact, because a claim and a settlement write them with the lease.
create table headrace_unit (
    key text primary key,
    held integer not null,          -- units of jobs under a lease
    level real,                     -- what was in the bucket at `at`; null: it is full
    at integer not null,
    full_at integer,                -- by then the bucket is full, and a row that holds nothing can go
    blocked integer not null        -- 1: a claim passed a lane over because of `held`; who frees units rings the bell
) without rowid;
create index headrace_unit_full on headrace_unit (full_at) where full_at is not null;

-- Who took a unique lock last; whether it still holds is read from that job.
create table headrace_unique (
    task text not null,
    name text not null,
    key integer not null,
    primary key (task, name)
) without rowid;
create index headrace_unique_key on headrace_unique (key);

create table headrace_pause (
    kind text not null,             -- queue, tenant, task
    name text not null,
    by text not null,
    since integer not null,
    until integer,
    primary key (kind, name)
) without rowid;
insert into headrace_pause select 'queue', queue, by, at, null from headrace_paused;
drop table headrace_paused;

-- What running tasks said of their jobs.
create table headrace_report (
    key integer primary key,
    progress real,
    doing text,
    log blob not null               -- MessagePack, see report.py
);

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
    e.result_until
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
