-- figures: queues after p_after with jobs, totals or a pause, at most p_limit of them: `depth` plus the journal that is
-- not folded yet.
create or replace function headrace.figures(p_after text, p_limit int4, p_now timestamptz default null) returns table (
    queue text, ready int8, scheduled int8, running int8, dead int8, done int8, failed int8, enqueued int8, paused bool,
    blocked int8
) language sql stable
set enable_seqscan = off
set jit = off
as $$
    with journal as materialized (
        select t.queue, sum(t.ready)::int8 as ready, sum(t.scheduled)::int8 as scheduled, sum(t.running)::int8 as running,
            sum(t.dead)::int8 as dead, sum(t.done)::int8 as done, sum(t.failed)::int8 as failed, sum(t.enqueued)::int8 as enqueued,
            sum(t.blocked)::int8 as blocked
        from headrace.tally t where t.queue > p_after group by t.queue
    ), paused as materialized (
        select p.name as queue from headrace.pause p
        where p.kind = 'queue' and p.name > p_after and (p.until is null or p.until > coalesce(p_now, clock_timestamp()))
    ), folded as materialized (
        select d.* from headrace.depth d where d.queue > p_after order by d.queue limit p_limit
    )
    select f.queue, sum(f.ready)::int8, sum(f.scheduled)::int8, sum(f.running)::int8, sum(f.dead)::int8, sum(f.done)::int8,
        sum(f.failed)::int8, sum(f.enqueued)::int8, bool_or(f.paused), sum(f.blocked)::int8
    from (
        select d.queue, d.ready, d.scheduled, d.running, d.dead, d.done, d.failed, d.enqueued, false as paused, d.blocked
        from folded d
        union all
        select j.queue, j.ready, j.scheduled, j.running, j.dead, j.done, j.failed, j.enqueued, false, j.blocked from journal j
        union all
        select p.queue, 0, 0, 0, 0, 0, 0, 0, true, 0 from paused p
    ) f group by f.queue order by f.queue limit p_limit
$$;

-- oldest: for each of these queues, the earliest enqueue time of the first jobs of its lanes, over at most p_lanes
-- lanes after the one given. It also returns the last of them. Inside a lane the first job is the oldest, so the heads
-- of the lanes are enough. One query reads all queues, because starting a query costs more than reading a lane.
create or replace function headrace.oldest(
    p_queues text[], p_lanes int4, a_priority int2 default null, a_tenant text default null, a_lane int8 default null
) returns table (queue text, enqueued_at timestamptz, lanes int4, priority int2, tenant text, lane int8) language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    with recursive walk(queue, priority, tenant, lane, batch, lo, n) as (
        select u.queue collate "C", coalesce(a_priority, 32767::int2), coalesce(a_tenant, '') collate "C",
            coalesce(a_lane, -9223372036854775808), null::uuid, 0, 0
        from unnest(p_queues) u(queue)
        union all
        select w.queue, y.priority, y.tenant, y.lane, y.batch, y.lo, w.n + 1
        from walk w cross join lateral (
            select z.* from (
                (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                 where r.queue = w.queue and r.priority = w.priority and (r.tenant, r.lane) > (w.tenant, w.lane)
                 order by r.tenant, r.lane, r.seq, r.hi limit 1)
                union all
                (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                 where r.queue = w.queue and r.priority < w.priority
                 order by r.queue, r.priority desc, r.tenant, r.lane, r.seq, r.hi limit 1)
            ) z limit 1
        ) y where w.n < p_lanes
    )
    select w.queue, min(j.enqueued_at), max(w.n), (array_agg(w.priority order by w.n desc))[1],
        (array_agg(w.tenant order by w.n desc))[1], (array_agg(w.lane order by w.n desc))[1]
    from walk w join headrace.job j on j.batch = w.batch and j.ord = w.lo group by w.queue;
end $$;

-- stats: for clients of an earlier version.
create or replace function headrace.stats(p_now timestamptz default null) returns table (
    queue text, ready int8, scheduled int8, running int8, dead int8, done int8, failed int8, enqueued int8,
    oldest_ready interval, paused bool
) language sql stable as $$
    select f.queue, f.ready, f.scheduled, f.running, f.dead, f.done, f.failed, f.enqueued,
        coalesce(p_now, clock_timestamp()) - o.enqueued_at, f.paused
    from headrace.figures('', 2147483647, p_now) f
    left join lateral headrace.oldest(array[f.queue], 100) o on f.ready > 0
    order by f.queue
$$;
