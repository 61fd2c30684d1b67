-- Flow: limits and their held units, unique locks, pauses of queues, tenants and tasks, reports of running tasks.
-- The reasons are in docs/internals/postgres.md.

-- A lane's limit keys are stored with its waiting ranges, so that a claim need not read them from the log.
alter table headrace.ready add column limits text[] collate "C";
alter table headrace.scheduled add column limits text[] collate "C";
update headrace.ready r set limits = j.limits from headrace.job j where r.lane <> 0 and j.batch = r.batch and j.ord = r.lo;
update headrace.scheduled s set limits = j.limits from headrace.job j where s.lane <> 0 and j.batch = s.batch and j.ord = s.lo;
-- Shows in one read whether a queue's priority has a lane with limit keys.
create index ready_limited on headrace.ready (queue, priority) where lane <> 0;

-- What a limit key allows. The sequence of the records makes versions that are never used again.
create table headrace.limit_rule (
    name         text        collate "C" not null primary key,
    version      int8        not null,
    concurrency  int4,
    rate         float8,
    burst        float8      not null,
    closed_until timestamptz,
    state        bytea       not null
) with (fillfactor = 50);
-- What is left of a rate: `units` at the time `at`. No row: the bucket is full.
create table headrace.bucket (
    key   text        collate "C" not null primary key,
    units float8      not null,
    at    timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Units that a lease holds of a key. Rows are made and deleted with their lease, in its transactions, so that none can
-- be left over, and a settle changes no row that another settle waits for.
create table headrace.hold (
    token uuid not null,
    units int4 not null,
    key   text collate "C" not null
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create unique index hold_key on headrace.hold (key, token);
create index hold_token on headrace.hold (token);
alter table headrace.lease add column limited bool not null default false;
insert into headrace.hold (token, units, key)
select l.token, sum(n.units), n.key
from headrace.lease l
cross join lateral (
    select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
    from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality x(batch, lo, hi, o)
) u
join headrace.job j on j.batch = u.batch and j.ord between u.lo and u.hi
cross join lateral unnest(j.limits) k(text)
cross join lateral (
    -- As `split_limit`: shop@3:acme is three units of shop:acme.
    select regexp_replace(k.text, '^([^:@]*)@\d+', '\1') as key, coalesce(substring(k.text from '^[^:@]*@(\d+)')::int4, 1) as units
) n
where l.gone is null or get_bit(l.gone, (u.base + j.ord - u.lo)::int4) = 0
group by l.token, n.key;
update headrace.lease l set limited = true where exists (select from headrace.hold h where h.token = l.token);

-- The last job that took a unique lock. Whether it still holds the lock is read from that job.
create table headrace.unique_lock (
    task  text        collate "C" not null,
    name  text        collate "C" not null,
    batch uuid        not null,
    ord   int4        not null,
    primary key (task, name)
);
create index unique_lock_batch on headrace.unique_lock (batch);

-- Queues, tenants and tasks that are paused. A pause that is over does not count.
create table headrace.pause (
    kind  text        collate "C" not null,
    name  text        collate "C" not null,
    by    text        not null,
    since timestamptz not null,
    until timestamptz,
    primary key (kind, name)
);
insert into headrace.pause (kind, name, by, since) select 'queue', queue, by, since from headrace.paused_queue;
drop table headrace.paused_queue;

-- Reports of running tasks. They need not survive a crash of the server.
create unlogged table headrace.report (
    batch    uuid not null,
    ord      int4 not null,
    progress float8,
    note     text,
    log_at   timestamptz[] not null,
    log_text text[] not null,
    primary key (batch, ord)
) with (fillfactor = 50);

-- Finds endings by time, with a few bytes per hundred pages.
create index ending_finished on headrace.ending using brin (finished_at) with (pages_per_range = 16, autosummarize = on);
-- The arguments of these functions have changed. This version creates them again.
drop function if exists headrace.claim(text[], int4, uuid, uuid, interval, int2[], text[], text[], int8[], int2[], text[], text[], int8[], int8[], timestamptz);
drop function if exists headrace.enqueue_batch(uuid, text[], bytea[], bytea[], int4[], text[], int2[], text[], int8[], text[], timestamptz[], interval[],
    int4[], text[], bytea[], interval[], timestamptz);
drop function if exists headrace.ahead(uuid, int4);
drop function if exists headrace.retry(uuid[]);
drop function if exists headrace.delete(uuid[]);
drop function if exists headrace.pause(text, text, timestamptz);
drop function if exists headrace.take_waiting(headrace.job, bool);
drop function if exists headrace.held(uuid);
