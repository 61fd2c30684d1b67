-- The foundation: the log, waiting jobs, leases, ended jobs, and the journal of the figures.
-- The reasons are in docs/internals/postgres.md.

-- The order inside a lane is the order of enqueue calls on the server: one number per call. The client makes the batch
-- id, and its clock must not decide the order.
create sequence headrace.call_seq;

-- ── the log: a job is written once ──────────────────────────────────────────────────────────────────────────────
-- The order of columns avoids padding. A batch is a UUIDv7, so partitions by range of batch are days.
create table headrace.job (
    batch       uuid        not null,
    seq         int8        not null,
    enqueued_at timestamptz not null,
    ord         int4        not null,
    priority    int2        not null,
    queue       text        collate "C" not null,
    task        text        collate "C" not null,
    payload     bytea       not null,
    tenant      text        collate "C",            -- null: no tenant
    lane        int8,                               -- null: 0, no limit keys
    limits      text[]      collate "C",
    options     bytea,
    primary key (batch, ord)
) partition by range (batch);
create table headrace.job_default partition of headrace.job default;

-- ── history: a job ends once (an operator's retry takes its ending away again) ──────────────────────────────────
create table headrace.ending (
    batch        uuid        not null,
    finished_at  timestamptz not null,
    ord          int4        not null,
    attempt      int4        not null,
    state        int2        not null,              -- 1 done, 2 dead, 3 cancelled
    failures     int4,                              -- null: 0
    crashes      int4,                              -- null: 0
    result       bytea,
    result_until timestamptz,                       -- null: as long as the job is kept
    note         text,
    primary key (batch, ord)
) partition by range (batch);
create table headrace.ending_default partition of headrace.ending default;
-- Dead letters are found without reading successful jobs.
create index ending_not_done on headrace.ending (batch, ord) where state <> 1;
-- Only the default partition is pruned row by row.
create index ending_default_finished on headrace.ending_default (finished_at);

create table headrace.failure (
    batch     uuid        not null,
    at        timestamptz not null,
    ord       int4        not null,
    attempt   int4        not null,
    kind      text        not null,
    message   text        not null,
    traceback text        not null,
    worker    text        not null
) partition by range (batch);
create table headrace.failure_default partition of headrace.failure default;
create index failure_job on headrace.failure (batch, ord);

-- ── what waits: a row is the range lo..hi of one batch in one lane ──────────────────────────────────────────────
create table headrace.ready (
    seq      int8 not null,
    lane     int8 not null,
    batch    uuid not null,
    lo       int4 not null,
    hi       int4 not null,
    priority int2 not null,
    attempt  int4 not null,
    failures int4 not null,
    crashes  int4 not null,
    suspect  bool not null,
    queue    text collate "C" not null,
    tenant   text collate "C" not null,
    note     text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- The order of claims, and the lookup of a waiting job from its log row. `lo` is not included, so that shortening a
-- range from the front stays a HOT update.
create unique index ready_lane on headrace.ready (queue, priority desc, tenant, lane, seq, hi);

create table headrace.scheduled (
    run_at   timestamptz not null,
    seq      int8 not null,
    lane     int8 not null,
    batch    uuid not null,
    lo       int4 not null,
    hi       int4 not null,
    priority int2 not null,
    attempt  int4 not null,
    failures int4 not null,
    crashes  int4 not null,
    suspect  bool not null,
    queue    text collate "C" not null,
    tenant   text collate "C" not null,
    note     text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index scheduled_due on headrace.scheduled (run_at);
create unique index scheduled_job on headrace.scheduled (batch, hi);

-- ── what is held: one row per claim. A job is its position in the expansion of the ranges ───────────────────────
create table headrace.lease (
    token      uuid        not null primary key,
    worker     uuid        not null,
    until      timestamptz not null,
    claimed_at timestamptz not null,
    cause      text,                                -- why it will be reaped; null: it has expired
    suspect    bool        not null,
    unsettled  int4        not null,
    gone       varbit,                              -- positions settled; null: none yet
    queues     text[]      collate "C" not null,
    r_batch    uuid[]      not null,
    r_lo       int4[]      not null,
    r_hi       int4[]      not null,
    r_attempt  int4[],                              -- null: all 1
    r_failures int4[],                              -- null: all 0
    r_crashes  int4[],                              -- null: all 0
    r_queue    int2[]                               -- index into queues; null: all 1
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Long arrays are stored out of line without compression, so that a heartbeat copies only pointers.
alter table headrace.lease
    alter r_batch set storage external, alter r_lo set storage external, alter r_hi set storage external,
    alter r_attempt set storage external, alter r_failures set storage external,
    alter r_crashes set storage external, alter r_queue set storage external, alter gone set storage external;
create index lease_until on headrace.lease (until);

-- Requested cancels of running jobs.
create table headrace.stop (
    batch  uuid not null,
    ord    int4 not null,
    reason text,
    primary key (batch, ord)
);

-- ── keys, pauses, presence ──────────────────────────────────────────────────────────────────────────────────────
create table headrace.idem (
    task   text        collate "C" not null,
    key    text        collate "C" not null,
    batch  uuid        not null,
    ord    int4        not null,
    digest bytea       not null,
    until  timestamptz not null,
    primary key (task, key)
);
create index idem_until on headrace.idem (until);

create table headrace.paused_queue (
    queue text        collate "C" not null primary key,
    by    text        not null,
    since timestamptz not null
);

create table headrace.worker (
    id         uuid        not null primary key,
    name       text        not null,
    queues     text[]      not null,
    slots      int4        not null,
    running    int4        not null,
    version    text        not null,
    started_at timestamptz not null,
    tasks      text[]      not null,
    seen_at    timestamptz not null
) with (fillfactor = 50);

-- ── figures: every verb appends a row, `fold` sums them up, so that no call counts or waits ─────────────────────
create table headrace.tally (
    ready     int4 not null default 0,
    scheduled int4 not null default 0,
    running   int4 not null default 0,
    dead      int4 not null default 0,
    done      int4 not null default 0,
    failed    int4 not null default 0,
    enqueued  int4 not null default 0,
    queue     text collate "C" not null
);
create table headrace.depth (
    queue     text collate "C" not null primary key,
    ready     int8 not null,
    scheduled int8 not null,
    running   int8 not null,
    dead      int8 not null,
    done      int8 not null,
    failed    int8 not null,
    enqueued  int8 not null
) with (fillfactor = 50);

-- The id of this store, because a user's transaction may be on a connection to another one.
create table headrace.identity (id uuid not null);
insert into headrace.identity values (gen_random_uuid());
