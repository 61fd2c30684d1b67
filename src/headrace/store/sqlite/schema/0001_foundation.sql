-- The tables of headrace in a SQLite file. They may live beside the tables of an application (that is what `tx=` is
-- for), so every name begins with `headrace_`. Times are whole microseconds since 1970.
--
-- A job's `key` is `batch.seq << 16 | ord`: one integer that is the row's own address in every table. What waits, and
-- what ended alike, is kept as ranges `lo..hi` of such keys; a range never leaves its batch.

create table headrace_batch (
    seq integer primary key,        -- counts enqueue calls; never reused while a row refers to it
    id blob not null unique,        -- the UUID, 16 bytes
    enqueued_at integer not null,
    existing blob,                  -- what enqueue answered, if its keys met jobs: repeated calls get it again
    hollow integer                  -- 1: every job of it was deleted; the next prune forgets it
);
create index headrace_batch_hollow on headrace_batch (seq) where hollow = 1;

-- Written once, never rewritten.
create table headrace_job (
    key integer primary key,
    queue text not null,
    priority integer not null,
    tenant text not null,
    lane integer not null,          -- lane.Lane.id
    limits text,                    -- JSON array; null: none
    task text not null,
    payload blob not null,
    options blob
);

-- The primary key is the order of the line: priority, then lane, then job id. An empty lane has no row.
create table headrace_ready (
    queue text not null,
    priority integer not null,
    tenant text not null,
    lane integer not null,
    batch blob not null,
    lo integer not null,
    hi integer not null,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    suspect integer not null,
    note text,
    primary key (queue, priority desc, tenant, lane, batch, lo)
) without rowid;

create table headrace_scheduled (
    lo integer primary key,
    hi integer not null,
    run_at integer not null,
    queue text not null,
    priority integer not null,
    tenant text not null,
    lane integer not null,
    batch blob not null,
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    suspect integer not null,
    note text
);
create index headrace_scheduled_due on headrace_scheduled (run_at);

-- One row per claim. A job is its position in the expansion of the ranges.
create table headrace_lease (
    token blob primary key,
    worker blob not null,
    cause text,                     -- why its worker has ended, if that is known
    claimed_at integer not null,
    expires_at integer not null,
    suspect integer not null,
    size integer not null,
    lo integer not null,            -- the lowest and highest key in it: finds a job's lease without decoding all
    hi integer not null,
    settled blob not null,          -- bitmap of positions, lowest bit first
    ranges blob not null            -- MessagePack, see lease.py
) without rowid;

-- Running jobs that were cancelled.
create table headrace_stop (
    token blob not null,
    position integer not null,
    reason text,
    primary key (token, position)
) without rowid;

create table headrace_ending (
    lo integer primary key,
    hi integer not null,
    state text not null,            -- done, dead, cancelled
    attempt integer not null,
    failures integer not null,
    crashes integer not null,
    finished_at integer not null,
    result blob,                    -- a range of several jobs has none
    result_until integer,
    note text
);
create index headrace_ending_finished on headrace_ending (state, finished_at);

create table headrace_failure (
    id integer primary key,
    key integer not null,
    attempt integer not null,
    kind text not null,
    message text not null,
    traceback text not null,
    at integer not null,
    worker text not null
);
create index headrace_failure_key on headrace_failure (key);

-- Idempotency keys; they live out their window whatever becomes of the job.
create table headrace_idem (
    task text not null,
    name text not null,
    digest blob not null,
    job blob not null,              -- the job's UUID
    expires_at integer not null,
    primary key (task, name)
) without rowid;
create index headrace_idem_expires on headrace_idem (expires_at);

create table headrace_worker (
    id blob primary key,
    name text not null,
    queues text not null,           -- JSON
    slots integer not null,
    running integer not null,
    version text not null,
    started_at integer not null,
    tasks text not null,            -- JSON
    seen_at integer not null
) without rowid;

create table headrace_paused (
    queue text primary key,
    by text not null,
    at integer not null
) without rowid;

-- Counted in the same transaction as the move itself: there is one writer, so exact counters cost nothing.
create table headrace_depth (
    queue text primary key,
    ready integer not null,
    scheduled integer not null,
    running integer not null,
    dead integer not null,
    done_total integer not null,
    failed_total integer not null,
    enqueued_total integer not null
) without rowid;

-- Every job with its derived state, for reading by hand and by `get` and `find`.
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
left join headrace_ready as r
    on r.queue = j.queue and r.priority = j.priority and r.tenant = j.tenant and r.lane = j.lane and r.batch = b.id
    and r.lo = (
        select max(x.lo) from headrace_ready as x
        where x.queue = j.queue and x.priority = j.priority and x.tenant = j.tenant and x.lane = j.lane
            and x.batch = b.id and x.lo <= j.key
    )
    and r.hi >= j.key;
