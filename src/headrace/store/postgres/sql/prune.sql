-- dead_until: dead letters that ended by this time are past retention. A queue may have a time of its own: p_queues are
-- their names, p_kept their times. All others use p_dead.
create or replace function headrace.dead_until(
    p_batch uuid, p_ord int4, p_dead timestamptz, p_queues text[], p_kept timestamptz[]
) returns timestamptz language sql stable as $$
    select case when cardinality(p_queues) = 0 then p_dead else coalesce(p_kept[array_position(p_queues, (
        select j.queue from headrace.job j where j.batch = p_batch and j.ord = p_ord))], p_dead) end
$$;

-- unfinished: places of jobs with a batch in [p_lo, p_hi) that wait or are held by a lease.
create or replace function headrace.unfinished(p_lo uuid, p_hi uuid) returns table (batch uuid, ord int4)
language sql stable rows 100 as $$
    select r.batch, g.ord from headrace.ready r cross join lateral generate_series(r.lo, r.hi) g(ord)
    where r.batch >= p_lo and r.batch < p_hi
    union all
    select s.batch, g.ord from headrace.scheduled s cross join lateral generate_series(s.lo, s.hi) g(ord)
    where s.batch >= p_lo and s.batch < p_hi
    union all
    select b.batch, g.ord from headrace.blocked b cross join lateral generate_series(b.lo, b.hi) g(ord)
    where b.batch >= p_lo and b.batch < p_hi
    union all
    select u.batch, g.ord from headrace.lease l
    cross join lateral unnest(l.r_batch, l.r_lo, l.r_hi) u(batch, lo, hi)
    cross join lateral generate_series(u.lo, u.hi) g(ord)
    where u.batch >= p_lo and u.batch < p_hi
$$;

-- keeps: whether a gate keeps its members. One that is not sealed may grow for ever, so it does that only if something waits for it, or
-- if it is a member of another one.
create or replace function headrace.keeps(p_gate uuid) returns bool language sql stable as $$
    select exists (select from headrace.gate g where g.id = p_gate and g.sealed)
        or exists (select from headrace.blocked b where b.gate = p_gate)
        or exists (select from headrace.edge e where e.batch = p_gate)
$$;

-- needed: whether one of these jobs of a batch, or a gate (at the place 0), is a member of a gate that keeps its members.
create or replace function headrace.needed(p_batch uuid, p_lo int4, p_hi int4) returns bool language sql stable as $$
    select exists (
        select from headrace.edge e
        where e.batch = p_batch and not e.many and e.hi between p_lo and p_hi and headrace.keeps(e.gate)
    ) or exists (
        select from headrace.edge e
        where e.batch = p_batch and e.many and e.hi >= p_lo and e.lo <= p_hi and headrace.keeps(e.gate)
    )
$$;

-- counted: places of ended jobs with a batch in [p_lo, p_hi) that `needed` is true of, and of their neighbours in a range.
create or replace function headrace.counted(p_lo uuid, p_hi uuid) returns table (batch uuid, ord int4)
language sql stable rows 100 as $$
    select e.batch, g.ord
    from headrace.edge m
    -- A range has at most 32 jobs.
    join headrace.ending e on e.batch = m.batch and e.ord > m.lo - 32 and e.ord <= m.hi and coalesce(e.hi, e.ord) >= m.lo
    cross join lateral generate_series(e.ord, coalesce(e.hi, e.ord)) g(ord)
    where m.batch >= p_lo and m.batch < p_hi and headrace.keeps(m.gate)
$$;

-- within_retention: places of jobs with a batch in [p_lo, p_hi) that ended and must be kept; at most p_limit.
create or replace function headrace.within_retention(
    p_lo uuid, p_hi uuid, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4
) returns table (batch uuid, ord int4) language plpgsql stable rows 100
-- Found by the indexes, because a day may have a hundred million jobs, and nearly none of them is kept.
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select * from (
        -- Both conditions on the state are needed: the first one matches the index.
        select e.batch, e.ord from headrace.ending e
        where e.batch >= p_lo and e.batch < p_hi and e.state <> 1 and e.state = 2
            and e.finished_at > headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept)
        union all
        select e.batch, g.ord from headrace.ending e cross join lateral generate_series(e.ord, coalesce(e.hi, e.ord)) g(ord)
        where e.batch >= p_lo and e.batch < p_hi and e.state <> 2 and e.finished_at > p_done
    ) k limit p_limit;
end $$;

-- set_aside: take one day's partitions out of the tables; what must be kept moves into the default partition.
--
-- Kept: jobs that wait or run, those that ended within retention, and those that gates keep. They are found before anything is locked. Then
-- writes to this day are blocked and changes since are added. Only then the tables are locked, for the time that it
-- takes to detach three partitions and to move at most 4,000 jobs. `prune_gone` drops what was set aside.
-- Returns 0 when that is done; 1 if there is too much to keep, or the caller does not own the tables: then `prune_rows`
-- deletes rows of the day; 2 if the tables are busy, or another caller does it.
create or replace function headrace.set_aside(
    p_day date, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4
) returns int4 language plpgsql as $$
declare
    v_most   constant int4 := least(p_limit, 4000);
    v_tables constant text[] := array['job', 'ending', 'failure'];
    v_day    text := to_char(p_day, 'YYYYMMDD');
    v_lo     uuid := headrace.batch_floor(p_day::timestamp at time zone 'UTC');
    v_hi     uuid := headrace.batch_floor((p_day + 1)::timestamp at time zone 'UTC');
    -- Jobs that end from here on are found again under the lock. Jobs that end in a long transaction have a lease until
    -- it commits.
    v_since  timestamptz := clock_timestamp() - interval '1 minute';
    v_batch  uuid[];
    v_ord    int4[];
    v_name   text;
begin
    if not pg_try_advisory_xact_lock(1214538830, 3) then return 2; end if;
    if to_regclass(format('headrace.%I', 'job_' || v_day)) is null then return 2; end if;
    if not pg_has_role((select c.relowner from pg_class c where c.oid = 'headrace.job'::regclass), 'usage') then return 1; end if;
    perform brin_summarize_new_values(i.indexrelid) from pg_index i
    join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
    where i.indrelid = format('headrace.%I', 'ending_' || v_day)::regclass and a.amname = 'brin';
    select array_agg(k.batch), array_agg(k.ord) into v_batch, v_ord from (
        select * from headrace.unfinished(v_lo, v_hi)
        union all
        select * from headrace.counted(v_lo, v_hi)
        union all
        select * from headrace.within_retention(v_lo, v_hi, p_done, p_dead, p_queues, p_kept, v_most + 1)
        limit v_most + 1) k;
    if cardinality(v_batch) > v_most then return 1; end if;

    perform set_config('lock_timeout', '50ms', true);
    foreach v_name in array v_tables loop
        execute format('lock table headrace.%I in exclusive mode', v_name || '_' || v_day);
    end loop;
    select array_agg(k.batch), array_agg(k.ord) into v_batch, v_ord from (
        select u.batch, u.ord from unnest(v_batch, v_ord) u(batch, ord)
        union
        select * from headrace.unfinished(v_lo, v_hi)
        union
        select * from headrace.counted(v_lo, v_hi)
        union
        select * from headrace.within_retention(v_lo, v_hi, v_since, v_since, '{}', '{}', v_most + 1)) k;
    if cardinality(v_batch) > v_most then return 1; end if;
    -- Other calls wait behind this lock, also while it is not granted, so all of this must not take long.
    lock table only headrace.job in access exclusive mode;
    perform set_config('lock_timeout', '15ms', true);
    lock table only headrace.ending, only headrace.failure, only headrace.job_default, only headrace.ending_default,
        only headrace.failure_default in access exclusive mode;
    foreach v_name in array v_tables loop
        execute format('alter table headrace.%I detach partition headrace.%I', v_name, v_name || '_' || v_day);
        execute format('alter table headrace.%I rename to %I', v_name || '_' || v_day, 'gone_' || v_name || '_' || v_day);
        perform headrace.move_kept('gone_' || v_name || '_' || v_day, v_name, v_batch, v_ord);
    end loop;
    perform set_config('lock_timeout', '0', true);
    return 0;
exception
    when lock_not_available or undefined_table or deadlock_detected then return 2;
end $$;

-- move_kept: move rows of these jobs from one table into another, each found by its key. A range of `ending` has one end, so it is
-- kept whole, and its first job names it.
create or replace function headrace.move_kept(p_from text, p_to text, p_batch uuid[], p_ord int4[]) returns void language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
    execute format('with kept as (delete from headrace.%I d using unnest($1, $2) k(batch, ord)
            where d.batch = k.batch and d.ord = k.ord returning d.*)
        insert into headrace.%I select * from kept', p_from, p_to) using p_batch, p_ord;
end $$;

-- prune_gone: drop the days that were set aside, which no call uses any more. Returns how many jobs they had, by the
-- server's estimate if there are many.
create or replace function headrace.prune_gone() returns int8 language plpgsql as $$
declare
    v_all  int8 := 0;
    v_some int8;
    v_day  text;
    v_job  regclass;
begin
    if not pg_try_advisory_xact_lock(1214538830, 3) then return 0; end if;
    for v_day in
        select right(c.relname, 8) from pg_class c
        where c.relnamespace = 'headrace'::regnamespace and c.relname ~ '^gone_job_[0-9]{8}$'
            and pg_has_role(c.relowner, 'usage') order by 1
    loop
        v_job := format('headrace.%I', 'gone_job_' || v_day)::regclass;
        if pg_relation_size(v_job) < 50000000 then
            execute format('select count(*) from headrace.%I', 'gone_job_' || v_day) into v_some;
        else
            select greatest(c.reltuples::int8, pg_stat_get_live_tuples(c.oid), 0) into v_some from pg_class c where c.oid = v_job;
        end if;
        execute format('insert into headrace.tally (dead, queue)
            select -count(*), j.queue from headrace.%I e join headrace.%I j on j.batch = e.batch and j.ord = e.ord
            where e.state <> 1 and e.state = 2 group by j.queue', 'gone_ending_' || v_day, 'gone_job_' || v_day);
        delete from headrace.report r
        where r.batch >= headrace.batch_floor(to_date(v_day, 'YYYYMMDD')::timestamp at time zone 'UTC')
            and r.batch < headrace.batch_floor((to_date(v_day, 'YYYYMMDD') + 1)::timestamp at time zone 'UTC')
            and not exists (select from headrace.job j where j.batch = r.batch and j.ord = r.ord);
        delete from headrace.step s
        where s.batch >= headrace.batch_floor(to_date(v_day, 'YYYYMMDD')::timestamp at time zone 'UTC')
            and s.batch < headrace.batch_floor((to_date(v_day, 'YYYYMMDD') + 1)::timestamp at time zone 'UTC')
            and not exists (select from headrace.job j where j.batch = s.batch and j.ord = s.ord);
        execute format('drop table headrace.%I, headrace.%I, headrace.%I',
            'gone_job_' || v_day, 'gone_ending_' || v_day, 'gone_failure_' || v_day);
        v_all := v_all + v_some;
    end loop;
    return v_all;
end $$;

-- prune_day: for workers of an older version. They delete rows of days until they are upgraded.
create or replace function headrace.prune_day(
    p_day date, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4
) returns int8 language sql as $$ select null::int8 $$;

-- prune_rows: delete up to p_limit finished jobs past retention row by row, by p_which of them:
--
--   default      those in the default partition
--   dead         dead letters anywhere: their time can end before their day's
--   everywhere   for tests that inject a clock, when ids and time do not agree and nothing follows from a
--                partition's day, and for days with too much to keep (p_from, p_to)
--
-- Jobs that gates keep stay, and with them their neighbours in a range.
create or replace function headrace.prune_rows(
    p_which text, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4,
    p_from uuid default null, p_to uuid default null
) returns int8 language plpgsql
-- Every row is found by its key.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_dead  timestamptz := greatest(p_dead, (select max(k) from unnest(p_kept) k));
    v_gates bool := exists (select from headrace.edge);
    v_count int8;
    v_batch uuid[];
    v_lo    int4[];
    v_hi    int4[];
    v_state int2[];
begin
    if p_which = 'everywhere' then
        select array_agg(d.batch), array_agg(d.ord), array_agg(d.hi), array_agg(d.state) into v_batch, v_lo, v_hi, v_state from (
            select e.batch, e.ord, coalesce(e.hi, e.ord) as hi, e.state from headrace.ending e
            where e.finished_at <= case when e.state = 2
                    then headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept) else p_done end
                and (p_from is null or (e.batch >= p_from and e.batch < p_to))
                and not (v_gates and headrace.needed(e.batch, e.ord, coalesce(e.hi, e.ord)))
            limit p_limit for update skip locked) d;
    elsif p_which = 'dead' then
        select array_agg(d.batch), array_agg(d.ord), array_agg(d.hi), array_agg(d.state) into v_batch, v_lo, v_hi, v_state from (
            -- Both conditions on the state are needed: the first one matches the index.
            select e.batch, e.ord, coalesce(e.hi, e.ord) as hi, e.state from headrace.ending e
            where e.state <> 1 and e.state = 2 and e.finished_at <= v_dead
                and e.finished_at <= headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept)
            limit p_limit for update skip locked) d;
    else
        select array_agg(d.batch), array_agg(d.ord), array_agg(d.hi), array_agg(d.state) into v_batch, v_lo, v_hi, v_state from (
            select e.batch, e.ord, coalesce(e.hi, e.ord) as hi, e.state from headrace.ending_default e
            where e.finished_at <= greatest(p_done, v_dead) and e.finished_at <= case when e.state = 2
                then headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept) else p_done end
                and not (v_gates and headrace.needed(e.batch, e.ord, coalesce(e.hi, e.ord)))
            limit p_limit for update skip locked) d;
    end if;
    if v_batch is null then return 0; end if;
    with gone as materialized (
        -- Of the range in which the limit is reached, the first jobs go.
        select k.batch, k.lo, k.state, k.hi as last, least(k.hi, k.lo + p_limit - k.before - 1)::int4 as hi
        from (
            select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as before
            from unnest(v_batch, v_lo, v_hi, v_state) with ordinality u(batch, lo, hi, state, o)
        ) k where k.before < p_limit
    ), whole as (
        delete from headrace.ending e using gone g where g.hi = g.last and e.batch = g.batch and e.ord = g.lo
    ), cut as (
        update headrace.ending e set ord = g.hi + 1, hi = nullif(g.last, g.hi + 1)
        from gone g where g.hi < g.last and e.batch = g.batch and e.ord = g.lo
    ), log as (
        delete from headrace.job j using gone g where j.batch = g.batch and j.ord between g.lo and g.hi returning j.queue, g.state
    ), failures as (
        delete from headrace.failure f using gone g where f.batch = g.batch and f.ord between g.lo and g.hi
    ), reports as (
        delete from headrace.report r using gone g where r.batch = g.batch and r.ord between g.lo and g.hi
    ), steps as (
        delete from headrace.step s using gone g where s.batch = g.batch and s.ord between g.lo and g.hi
    ), told as (
        insert into headrace.tally (dead, queue) select -count(*), l.queue from log l where l.state = 2 group by l.queue
    )
    select sum(g.hi - g.lo + 1) into v_count from gone g;
    return v_count;
end $$;

-- prune_rest: other rows that grow: keys whose window is over, stops of ended jobs, workers not seen for a day, pauses
-- that are over, unique locks of deleted jobs, what deleted batches did not store, buckets that are full again.
create or replace function headrace.prune_rest(p_limit int4, p_now timestamptz default null) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    delete from headrace.idem i where i.ctid = any (array(
        select k.ctid from headrace.idem k where k.until <= v_now order by k.until limit p_limit for update skip locked));
    delete from headrace.stop s where exists (select from headrace.ending_of(s.batch, s.ord))
        or not exists (select from headrace.job j where j.batch = s.batch and j.ord = s.ord);
    delete from headrace.worker w where w.seen_at < v_now - interval '1 day';
    delete from headrace.pause p where p.until <= v_now;
    delete from headrace.unique_lock u where u.ctid = any (array(
        select k.ctid from headrace.unique_lock k
        where k.batch < headrace.batch_floor(clock_timestamp() - interval '1 day')
            and not exists (select from headrace.job j where j.batch = k.batch and j.ord = k.ord)
        order by k.batch limit p_limit for update skip locked));
    delete from headrace.refused r where r.ctid = any (array(
        select k.ctid from headrace.refused k
        where k.batch < headrace.batch_floor(clock_timestamp() - interval '1 day')
            and not exists (select from headrace.job j where j.batch = k.batch)
        order by k.batch limit p_limit for update skip locked));
    delete from headrace.bucket b where b.ctid = any (array(
        select k.ctid from headrace.bucket k
        left join lateral headrace.limit_now(split_part(k.key, ':', 1), k.key, 1, v_now) n on true
        where k.at < v_now - interval '1 hour' and (n.rate is null or n.units >= n.burst)
        limit p_limit for update of k skip locked));
end $$;
