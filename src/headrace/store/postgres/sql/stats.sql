-- stats: every queue with jobs, totals or a pause: what was folded plus what was not yet.
create or replace function headrace.stats(p_now timestamptz default null) returns table (
    queue text, ready int8, scheduled int8, running int8, dead int8, done int8, failed int8, enqueued int8,
    oldest_ready interval, paused bool
) language sql stable as $$
    with figure as materialized (
        select f.queue, sum(f.ready)::int8 as ready, sum(f.scheduled)::int8 as scheduled, sum(f.running)::int8 as running,
            sum(f.dead)::int8 as dead, sum(f.done)::int8 as done, sum(f.failed)::int8 as failed, sum(f.enqueued)::int8 as enqueued
        from (
            select d.queue, d.ready, d.scheduled, d.running, d.dead, d.done, d.failed, d.enqueued from headrace.depth d
            union all
            select t.queue, t.ready, t.scheduled, t.running, t.dead, t.done, t.failed, t.enqueued from headrace.tally t
            union all
            select p.name, 0, 0, 0, 0, 0, 0, 0 from headrace.pause p
            where p.kind = 'queue' and (p.until is null or p.until > coalesce(p_now, clock_timestamp()))
        ) f group by f.queue
    )
    select f.queue, f.ready, f.scheduled, f.running, f.dead, f.done, f.failed, f.enqueued,
        coalesce(p_now, clock_timestamp()) - o.enqueued_at,
        exists (select from headrace.pause p where p.kind = 'queue' and p.name = f.queue
            and (p.until is null or p.until > coalesce(p_now, clock_timestamp())))
    from figure f
    left join lateral (
        -- Inside a lane the first is the oldest, so the heads of the lanes are enough; at most 1,000 are looked at.
        with recursive head(priority, tenant, lane, batch, lo, n) as (
            (select r.priority, r.tenant, r.lane, r.batch, r.lo, 1 from headrace.ready r
             where r.queue = f.queue order by r.queue, r.priority desc, r.tenant, r.lane, r.seq, r.hi limit 1)
            union all
            select x.priority, x.tenant, x.lane, x.batch, x.lo, h.n + 1
            from head h cross join lateral (
                select y.* from (
                    (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                     where r.queue = f.queue and r.priority = h.priority and (r.tenant, r.lane) > (h.tenant, h.lane)
                     order by r.tenant, r.lane, r.seq, r.hi limit 1)
                    union all
                    (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                     where r.queue = f.queue and r.priority < h.priority
                     order by r.queue, r.priority desc, r.tenant, r.lane, r.seq, r.hi limit 1)
                ) y limit 1
            ) x where h.n < 1000
        )
        select min(j.enqueued_at) as enqueued_at from head h join headrace.job j on j.batch = h.batch and j.ord = h.lo
        where f.ready > 0
    ) o on true
    order by f.queue
$$;
