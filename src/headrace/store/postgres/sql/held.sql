-- held: the unsettled jobs of an existing lease, by position. For a claim whose answer was lost, and for reap.
--
-- Returns no row if there is no such lease. Positions are counted from the lease, never from the log, because settled
-- jobs may have been deleted.
create or replace function headrace.held(p_token uuid) returns table (
    queue text, priority int2, tenant text, lane int8, seq int8, batch uuid, ord int4, attempt int4, failures int4,
    crashes int4, suspect bool, enqueued_at timestamptz, task text, payload bytea, options bytea, "position" int4
) language sql stable as $$
    select j.queue, j.priority, coalesce(j.tenant, ''), coalesce(j.lane, 0), j.seq, j.batch, j.ord, coalesce(r.attempt, 1),
        coalesce(r.failures, 0), coalesce(r.crashes, 0), l.suspect, j.enqueued_at, j.task, j.payload,
        j.options, (r.base + j.ord - r.lo)::int4
    from headrace.lease l
    cross join lateral (
        select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
        from unnest(l.r_batch, l.r_lo, l.r_hi, l.r_attempt, l.r_failures, l.r_crashes)
            with ordinality u(batch, lo, hi, attempt, failures, crashes, o)
    ) r
    cross join lateral (select b.* from headrace.job b where b.batch = r.batch and b.ord between r.lo and r.hi) j
    where l.token = p_token and (l.gone is null or get_bit(l.gone, (r.base + j.ord - r.lo)::int4) = 0)
    order by 16
$$;
