-- units: the units that the jobs at some positions of a lease hold, by limit key.
create or replace function headrace.units(l headrace.lease, p_positions int4[]) returns table (key text, units int4)
language sql stable as $$
    select s.key, least(sum(s.cost), 2147483647)::int4
    from unnest(p_positions) p(position)
    join (
        select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
        from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
    ) r on p.position between r.base and r.base + r.hi - r.lo
    join headrace.job j on j.batch = r.batch and j.ord = (r.lo + p.position - r.base)::int4
    cross join lateral unnest(j.limits) k(text)
    cross join lateral headrace.split_limit(k.text) s
    group by s.key
$$;

-- give_back: free the units of some positions of a lease. Changes only rows of the lease, whose lock the caller has.
create or replace function headrace.give_back(l headrace.lease, p_positions int4[]) returns void language plpgsql as $$
begin
    with less as materialized (
        select u.key, u.units from headrace.units(l, p_positions) u
    ), gone as (
        delete from headrace.hold h using less where h.token = l.token and h.key = less.key and h.units <= less.units
    )
    update headrace.hold h set units = h.units - less.units from less
    where h.token = l.token and h.key = less.key and h.units > less.units;
end $$;
