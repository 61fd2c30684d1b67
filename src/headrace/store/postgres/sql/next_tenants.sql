-- next_tenants: up to p_limit tenants of one queue and priority that have ready jobs, in the order of their names: those
-- after p_after (null: from the first) up to p_upto (null: to the last), each with the length of its first range.
--
-- A skip scan: one descent of the index per tenant, however many jobs wait.
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

-- next_round: up to p_most tenants whose turn is next, without those in p_paused: after p_after, then from the first
-- tenant (p_wrapped: the end was passed) up to at_tenant, where the ring began. at_tenant itself is first, if it is
-- owed something.
--
-- Returns them with the lengths of their first ranges, where the next round goes on, and whether the ring is `done`.
create or replace function headrace.next_round(
    p_queue text, p_priority int2, p_paused text[], at_tenant text, p_owed int4, p_after text, p_wrapped bool, p_most int4,
    out tenants text[], out lengths int4[], out after text, out wrapped bool, out done bool
) language plpgsql as $$
#variable_conflict use_variable
declare
    v_need  int4 := p_most + 1;                       -- one more shows whether there are more
    v_first int4;
    x       record;
begin
    tenants := '{}'; lengths := '{}'; wrapped := p_wrapped;
    if p_owed > 0 then
        v_first := (select r.hi - r.lo + 1 from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant = at_tenant
            order by r.tenant, r.lane, r.seq, r.hi limit 1);
        if v_first is not null then
            tenants := array[at_tenant]; lengths := array[v_first];
        end if;
    end if;
    x := headrace.next_tenants(p_queue, p_priority, p_after, case when wrapped then at_tenant end, v_need - cardinality(tenants));
    tenants := tenants || x.tenants; lengths := lengths || x.lengths;
    if cardinality(tenants) < v_need and not wrapped then
        wrapped := true;
        x := headrace.next_tenants(p_queue, p_priority, null, at_tenant, v_need - cardinality(tenants));
        if v_first is not null and x.tenants[cardinality(x.tenants)] = at_tenant then
            x.tenants := x.tenants[:cardinality(x.tenants) - 1]; x.lengths := x.lengths[:cardinality(x.lengths) - 1];
        end if;
        tenants := tenants || x.tenants; lengths := lengths || x.lengths;
    end if;
    done := cardinality(tenants) < v_need;
    tenants := tenants[:p_most]; lengths := lengths[:p_most];
    -- Tenants up to here are done. The next round goes on from the last of them, also beyond the end of the ring.
    after := tenants[cardinality(tenants)];
    wrapped := wrapped and (at_tenant is null or after collate "C" <= at_tenant);
    if p_paused is not null and tenants && p_paused then
        select coalesce(array_agg(u.t order by u.o), '{}'), coalesce(array_agg(u.n order by u.o), '{}') into tenants, lengths
        from unnest(tenants, lengths) with ordinality u(t, n, o) where u.t <> all (p_paused);
    end if;
end $$;
