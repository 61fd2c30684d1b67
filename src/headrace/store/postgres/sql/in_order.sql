-- in_order: the ranges that a claim took in several walks, those of each tenant's lane in the order of the lane.
--
-- Another claim may leave a range between two walks, which it had locked and which lies before those that this claim has
-- taken already. The ranges of a tenant keep the places that they have among those of other tenants.
create or replace function headrace.in_order(
    p_tenant text[], inout n_batch uuid[], inout n_lo int4[], inout n_hi int4[],
    inout n_attempt int4[], inout n_failures int4[], inout n_crashes int4[]
) language sql stable as $$
    with taken as (
        select u.*, coalesce(j.lane, 0) as lane,
            row_number() over (partition by u.tenant, coalesce(j.lane, 0) order by u.o) as place,
            row_number() over (partition by u.tenant, coalesce(j.lane, 0) order by j.seq, u.lo) as due
        from unnest(p_tenant, n_batch, n_lo, n_hi, n_attempt, n_failures, n_crashes)
            with ordinality u(tenant, batch, lo, hi, attempt, failures, crashes, o)
        join headrace.job j on j.batch = u.batch and j.ord = u.lo
    )
    select array_agg(d.batch order by t.o), array_agg(d.lo order by t.o), array_agg(d.hi order by t.o),
        case when n_attempt is not null then array_agg(d.attempt order by t.o) end,
        case when n_failures is not null then array_agg(d.failures order by t.o) end,
        case when n_crashes is not null then array_agg(d.crashes order by t.o) end
    from taken t join taken d on d.tenant = t.tenant and d.lane = t.lane and d.due = t.place
$$;
