-- Gates: jobs that wait for jobs, for groups of jobs and for signals. The reasons are in docs/internals/postgres.md.

-- What jobs wait for, besides other jobs. The counts are those of the tolls that were folded so far.
create table headrace.gate (
    id         uuid        not null primary key,
    made_at    timestamptz not null,
    changed_at timestamptz not null,
    kept_until timestamptz,                          -- of a signal
    size       int8        not null,
    done       int8        not null default 0,
    dead       int8        not null default 0,
    cancelled  int8        not null default 0,
    told       int2        not null default 0,       -- as a member of other gates: 0 open, 1 done, 2 dead, 3 cancelled
    sealed     bool        not null,
    signalled  bool        not null,
    queue      text        collate "C" not null,
    tenant     text        collate "C" not null,
    label      text        not null,
    value      bytea
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index gate_group on headrace.gate (id) where label <> '';
create index gate_tenant on headrace.gate (tenant, id) where label <> '';
create index gate_made on headrace.gate (made_at);
create index gate_kept on headrace.gate (kept_until) where kept_until is not null;

-- Members: the jobs lo..hi of a batch. A gate as a member has its own id as `batch`, and the place 0.
create table headrace.edge (
    batch uuid not null,
    gate  uuid not null,
    lo    int4 not null,
    hi    int4 not null,
    many  bool not null generated always as (lo < hi) stored
);
create unique index edge_gate on headrace.edge (gate, batch, lo, hi);
-- A single member is found by its place. Runs of members are few, and those of a batch are looked through.
create index edge_member on headrace.edge (batch, many, hi, lo, gate);

-- Runs of jobs that wait. `gate` is the id of a gate or of a job. A suspended job has a row for each gate that it waits for, and
-- has run before, so its `attempt` is not 0. The others are due when they are released.
create table headrace.blocked (
    gate     uuid not null,
    batch    uuid not null,
    seq      int8 not null,
    lane     int8 not null,
    run_at   timestamptz,                            -- suspended until then at the latest
    due_at   timestamptz,                            -- not before then, or not before this delay after the release
    delay    interval,
    lo       int4 not null,
    hi       int4 not null,
    attempt  int4 not null,
    failures int4 not null,
    crashes  int4 not null,
    priority int2 not null,
    needs    int2 not null,                          -- 1 done, 2 ended, 3 failed
    suspect  bool not null,
    queue    text collate "C" not null,
    tenant   text collate "C" not null,
    note     text,
    limits   text[] collate "C"
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index blocked_gate on headrace.blocked (gate, batch, hi);
create index blocked_job on headrace.blocked (batch, hi, gate);
create index blocked_due on headrace.blocked (run_at) where run_at is not null;

-- What one call counted on a gate. `follow` adds the rows up. A row for a job says that its end has consequences.
create table headrace.toll (
    gate      uuid not null,
    size      int4 not null default 0,
    done      int4 not null default 0,
    dead      int4 not null default 0,
    cancelled int4 not null default 0
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index toll_gate on headrace.toll (gate);

alter table headrace.tally add column blocked int4 not null default 0;
alter table headrace.depth add column blocked int8 not null default 0;

-- The arguments or results of these functions have changed. This version creates them again.
drop function if exists headrace.figures(text, int4, timestamptz);
drop function if exists headrace.take_waiting(headrace.job, bool, bool);
drop function if exists headrace.enqueue_batch(uuid, text[], bytea[], bytea[], int4[], text[], int2[], text[], int8[], text[], timestamptz[],
    interval[], int4[], text[], bytea[], interval[], int4[], text[], text[], interval[], bool[], timestamptz);
drop function if exists headrace.settle(uuid, int4[], int2[], bytea[], interval[], int4[], int4[], text[], timestamptz[], interval[], bool[],
    int4[], int4[], text[], text[], text[], timestamptz[], text[], timestamptz);
