-- next_tenants: up to p_limit tenants of one queue and priority that have ready jobs, in the order of their names: those
-- after p_after (null: from the first) up to p_upto (null: to the last), each with the length of its first range.
--
-- A skip scan: one descent of the index per tenant, however much it has waiting.
create or replace function headrace.next_tenants(
    p_queue text, p_priority int2, p_after text, p_upto text, p_limit int4, out tenants text[], out lengths int4[]
) language plpgsql as $$
begin
    with recursive walk(tenant, len, n) as (
        -- Names are printable ASCII, so p_after || \x01 comes before any name after it.
        (select r.tenant, r.hi - r.lo + 1, 1 from headrace.ready r
         where r.queue = p_queue and r.priority = p_priority and r.tenant >= coalesce(p_after || E'\x01', '')
         order by r.tenant, r.lane, r.seq, r.hi limit 1)
        union all
        select x.tenant, x.len, w.n + 1
        from walk w cross join lateral (
            select r.tenant, r.hi - r.lo + 1 as len from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant > w.tenant
            order by r.tenant, r.lane, r.seq, r.hi limit 1
        ) x
        where w.n < p_limit and (p_upto is null or w.tenant < p_upto)
    )
    select coalesce(array_agg(w.tenant order by w.n), '{}'), coalesce(array_agg(w.len order by w.n), '{}') into tenants, lengths
    from walk w where p_upto is null or w.tenant <= p_upto;
end $$;

-- next_lanes: up to p_limit lanes of each of some tenants, in order: those after p_after (null: from the first) up to p_bound
-- (null: to the last), and then, where p_upto is given, from the first one up to it.
--
-- Answers by place in p_tenants: `of`. `limits`: the lane's keys, joined by newline (arrays cannot be ragged).
create or replace function headrace.next_lanes(
    p_queue text, p_priority int2, p_tenants text[], p_after int8[], p_bound int8[], p_upto int8[], p_limit int4,
    out of int4[], out lanes int8[], out lengths int4[], out limits text[]
) language plpgsql as $$
begin
    select coalesce(array_agg(t.o::int4), '{}'), coalesce(array_agg(x.lane), '{}'),
        coalesce(array_agg(x.len), '{}'), coalesce(array_agg(array_to_string(x.limits, E'\n')), '{}')
    into of, lanes, lengths, limits
    from unnest(p_tenants, p_after, p_bound, p_upto) with ordinality t(tenant, after, bound, upto, o)
    cross join lateral (
        select w.* from (values (coalesce(t.after, -9223372036854775808), t.bound, 1), (-9223372036854775808, t.upto, 2)) part(after, upto, nth)
        cross join lateral (
            with recursive walk(lane, len, limits, n) as (
                (select r.lane, r.hi - r.lo + 1, r.limits, 1 from headrace.ready r
                 where r.queue = p_queue and r.priority = p_priority and r.tenant = t.tenant and r.lane > part.after
                 order by r.lane, r.seq, r.hi limit 1)
                union all
                select y.lane, y.len, y.limits, w.n + 1
                from walk w cross join lateral (
                    select r.lane, r.hi - r.lo + 1 as len, r.limits from headrace.ready r
                    where r.queue = p_queue and r.priority = p_priority and r.tenant = t.tenant and r.lane > w.lane
                    order by r.lane, r.seq, r.hi limit 1
                ) y
                where w.n < p_limit and (part.upto is null or w.lane < part.upto)
            )
            select * from walk
        ) w
        where (part.nth = 1 or t.upto is not null) and (part.upto is null or w.lane <= part.upto)
        limit p_limit
    ) x;
end $$;
