-- dead_until: dead letters that ended by this time are past retention. Their queue may have a time of its own: p_queues are
-- the names of those that do, p_kept their times; all others go by p_dead.
create or replace function headrace.dead_until(
    p_batch uuid, p_ord int4, p_dead timestamptz, p_queues text[], p_kept timestamptz[]
) returns timestamptz language sql stable as $$
    select case when cardinality(p_queues) = 0 then p_dead else coalesce(p_kept[array_position(p_queues, (
        select j.queue from headrace.job j where j.batch = p_batch and j.ord = p_ord))], p_dead) end
$$;

-- prune_day: drop one day's partitions whole; what must be kept moves into the default partition first.
--
-- Kept: jobs that wait or run, and those that ended within retention. The tables are locked for as long as that takes, so
-- with more than p_limit to keep nothing is done, and null answered: then `prune_rows` thins the day out.
-- Answers the number of jobs dropped; null also when the tables are too busy.
create or replace function headrace.prune_day(
    p_day date, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4
) returns int8 language plpgsql as $$
declare
    v_day  text := to_char(p_day, 'YYYYMMDD');
    v_lo   uuid := headrace.batch_floor(p_day::timestamp at time zone 'UTC');
    v_hi   uuid := headrace.batch_floor((p_day + 1)::timestamp at time zone 'UTC');
    v_kept int8;
    v_all  int8;
    v_name text;
    v_keep constant text := 'select j.batch, j.ord from headrace.job j
        left join headrace.ending e on e.batch = j.batch and e.ord = j.ord
        where j.batch >= %1$L and j.batch < %2$L
            and (e.batch is null or e.finished_at > case when e.state = 2
                then headrace.dead_until(e.batch, e.ord, %4$L, %5$L, %6$L) else %3$L::timestamptz end)';
begin
    -- Judged before anything is locked, then again when nobody can change it any more.
    execute format('select count(*) from (' || v_keep || ' limit %7$s) k',
        v_lo, v_hi, p_done, p_dead, p_queues, p_kept, p_limit + 1) into v_kept;
    if v_kept > p_limit then return null; end if;
    begin
        perform set_config('lock_timeout', '200ms', true);
        lock table headrace.job, headrace.ending, headrace.failure in access exclusive mode;
        perform set_config('lock_timeout', '0', true);
    exception when lock_not_available then
        return null;
    end;
    create temp table headrace_keep (batch uuid, ord int4) on commit drop;
    execute format('insert into pg_temp.headrace_keep ' || v_keep, v_lo, v_hi, p_done, p_dead, p_queues, p_kept);
    get diagnostics v_kept = row_count;
    insert into headrace.tally (dead, queue)
    select -count(*), j.queue from headrace.ending e join headrace.job j on j.batch = e.batch and j.ord = e.ord
    where e.batch >= v_lo and e.batch < v_hi and e.state = 2
        and e.finished_at <= headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept) group by j.queue;
    execute format('select count(*) from headrace.%I', 'job_' || v_day) into v_all;
    foreach v_name in array array['job', 'ending', 'failure'] loop
        execute format('alter table headrace.%I detach partition headrace.%I', v_name, v_name || '_' || v_day);
        execute format('insert into headrace.%1$I select d.* from headrace.%2$I d join pg_temp.headrace_keep k using (batch, ord)',
            v_name, v_name || '_' || v_day);
        execute format('drop table headrace.%I', v_name || '_' || v_day);
    end loop;
    delete from headrace.report r where r.batch >= v_lo and r.batch < v_hi
        and not exists (select from pg_temp.headrace_keep k where k.batch = r.batch and k.ord = r.ord);
    drop table pg_temp.headrace_keep;
    return v_all - v_kept;
end $$;

-- prune_rows: delete up to p_limit finished jobs past retention row by row, by p_which of them:
--
--   default      those in the default partition
--   dead         dead letters anywhere: their time can be over before their day is
--   everywhere   for tests that inject a clock, when ids and time do not agree and nothing can be told from a
--                partition's day, and for days with too much to keep (p_from, p_to)
create or replace function headrace.prune_rows(
    p_which text, p_done timestamptz, p_dead timestamptz, p_queues text[], p_kept timestamptz[], p_limit int4,
    p_from uuid default null, p_to uuid default null
) returns int8 language plpgsql as $$
declare
    v_dead  timestamptz := greatest(p_dead, (select max(k) from unnest(p_kept) k));
    v_count int8;
    v_batch uuid[];
    v_ord   int4[];
begin
    if p_which = 'everywhere' then
        select array_agg(d.batch), array_agg(d.ord) into v_batch, v_ord from (
            select e.batch, e.ord from headrace.ending e
            where e.finished_at <= case when e.state = 2
                    then headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept) else p_done end
                and (p_from is null or (e.batch >= p_from and e.batch < p_to))
            limit p_limit for update skip locked) d;
    elsif p_which = 'dead' then
        select array_agg(d.batch), array_agg(d.ord) into v_batch, v_ord from (
            -- Both conditions on the state: the first is the index's own.
            select e.batch, e.ord from headrace.ending e
            where e.state <> 1 and e.state = 2 and e.finished_at <= v_dead
                and e.finished_at <= headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept)
            limit p_limit for update skip locked) d;
    else
        select array_agg(d.batch), array_agg(d.ord) into v_batch, v_ord from (
            select e.batch, e.ord from headrace.ending_default e
            where e.finished_at <= greatest(p_done, v_dead) and e.finished_at <= case when e.state = 2
                then headrace.dead_until(e.batch, e.ord, p_dead, p_queues, p_kept) else p_done end
            limit p_limit for update skip locked) d;
    end if;
    if v_batch is null then return 0; end if;
    with gone as (
        delete from headrace.ending e using unnest(v_batch, v_ord) u(batch, ord)
        where e.batch = u.batch and e.ord = u.ord returning e.batch, e.ord, e.state
    ), log as (
        delete from headrace.job j using gone g where j.batch = g.batch and j.ord = g.ord returning j.queue, g.state
    ), failures as (
        delete from headrace.failure f using gone g where f.batch = g.batch and f.ord = g.ord
    ), reports as (
        delete from headrace.report r using gone g where r.batch = g.batch and r.ord = g.ord
    ), told as (
        insert into headrace.tally (dead, queue) select -count(*), l.queue from log l where l.state = 2 group by l.queue
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;

-- prune_rest: what else grows: keys whose window is over, stops of jobs that ended, workers not seen for a day, pauses that
-- are over, unique locks of jobs that are gone, buckets that are full again.
create or replace function headrace.prune_rest(p_limit int4, p_now timestamptz default null) returns void language plpgsql as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    delete from headrace.idem i where i.ctid = any (array(
        select k.ctid from headrace.idem k where k.until <= v_now order by k.until limit p_limit for update skip locked));
    delete from headrace.stop s where exists (select from headrace.ending e where e.batch = s.batch and e.ord = s.ord);
    delete from headrace.worker w where w.seen_at < v_now - interval '1 day';
    delete from headrace.pause p where p.until <= v_now;
    delete from headrace.unique_lock u where u.ctid = any (array(
        select k.ctid from headrace.unique_lock k
        where k.batch < headrace.batch_floor(clock_timestamp() - interval '1 day')
            and not exists (select from headrace.job j where j.batch = k.batch and j.ord = k.ord)
        order by k.batch limit p_limit for update skip locked));
    delete from headrace.bucket b where b.ctid = any (array(
        select k.ctid from headrace.bucket k
        left join lateral headrace.limit_now(split_part(k.key, ':', 1), k.key, 1, v_now) n on true
        where k.at < v_now - interval '1 hour' and (n.rate is null or n.units >= n.burst)
        limit p_limit for update of k skip locked));
end $$;
