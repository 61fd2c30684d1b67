-- give_owed: take up to p_quota jobs of tenants that earlier claims passed over. Plain lanes only, as `take_turns`, which
-- explains p_first, d_*.
--
-- Claims of one store object pass a tenant over once. The next one waits for the tenant whose debt is the oldest, as long as it
-- holds nothing, or a tenant would get less than its share the more often claims meet. A tenant that is owed as much as can be
-- owed is not waited for, because then another transaction than a claim holds its range.
--
-- Returns what was taken, as `take_turns`, and what is still owed (due_*; null: nothing). A tenant without jobs is owed nothing.
create or replace function headrace.give_owed(
    p_queue text, p_priority int2, p_quota int4, p_first bool, d_tenant text[], d_jobs int4[],
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out due_tenant text[], out due_jobs int4[]
) language plpgsql as $$
#variable_conflict use_variable
declare
    v_left int4 := p_quota;
    v_most int4 := greatest(100, p_quota);            -- other tenants wait for at most so many jobs
    v_len  int4;
    x      record;
    l_tenant text[] := '{}'; l_owed int4[] := '{}'; l_quota int4[] := '{}'; l_len int4[] := '{}'; l_got int4[];
begin
    if p_first and d_jobs[1] < v_most then
        perform from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant = d_tenant[1] and r.lane = 0
        order by r.seq, r.hi limit 1 for update skip locked;
        if not found then
            perform headrace.wait_for(p_queue, p_priority, d_tenant[1], 0);
        end if;
    end if;
    for i in 1 .. cardinality(d_tenant) loop
        v_len := (select r.hi - r.lo + 1 from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant = d_tenant[i] and r.lane = 0
            order by r.seq, r.hi limit 1);
        continue when v_len is null;
        l_tenant := l_tenant || d_tenant[i]; l_owed := l_owed || least(d_jobs[i], v_most); l_len := l_len || v_len;
        l_quota := l_quota || least(d_jobs[i], v_most, v_left); v_left := v_left - l_quota[cardinality(l_quota)];
    end loop;
    got := 0; suspect := false; stop := false;
    if cardinality(l_tenant) = 0 then return; end if;
    l_got := array_fill(0, array[cardinality(l_tenant)]);
    x := headrace.take_ranges(p_queue, p_priority, l_tenant, array_fill(0::int8, array[cardinality(l_tenant)]), null, l_quota,
        headrace.rows_for(l_quota, l_got, l_len), p_quota, p_first);
    n_tenant := x.n_tenant; n_batch := x.n_batch; n_lo := x.n_lo; n_hi := x.n_hi;
    n_attempt := x.n_attempt; n_failures := x.n_failures; n_crashes := x.n_crashes;
    got := x.got; suspect := x.suspect; stop := x.stop; l_got := headrace.add_up(l_got, x.n_of, x.n_lo, x.n_hi);
    for i in 1 .. cardinality(l_tenant) loop
        if l_owed[i] > l_got[i] then
            due_tenant := due_tenant || l_tenant[i]; due_jobs := due_jobs || (l_owed[i] - l_got[i]);
        end if;
    end loop;
end $$;

-- passed_over: what tenants are owed after a lap that passed some of them over.
--
--   p_from, p_upto     the lap went from this place of the ring to this tenant (null: over the whole ring)
--   p_served           the tenants that it served
--   p_unit             jobs in a turn, times the tenant's weight; but p_first for the tenant p_owed
--   p_most             no tenant is owed more
--   due_tenant, due_jobs   what tenants are owed already
create or replace function headrace.passed_over(
    p_queue text, p_priority int2, p_weights jsonb, p_from text, p_upto text, p_served text[], p_unit int4, p_owed text, p_first int4,
    p_most int4, inout due_tenant text[], inout due_jobs int4[]
) language plpgsql as $$
#variable_conflict use_variable
declare
    f record;
    i int4;
begin
    for f in
        select z.tenant, sum(z.len)::int4 as jobs from (
            select * from (
                select r.tenant, r.hi - r.lo + 1 as len from headrace.ready r
                where r.queue = p_queue and r.priority = p_priority and r.tenant >= p_from and r.lane = 0
                order by r.tenant, r.lane, r.seq, r.hi limit 64
            ) a
            union all
            select * from (
                select r.tenant, r.hi - r.lo + 1 from headrace.ready r
                where r.queue = p_queue and r.priority = p_priority and r.tenant < p_from and r.lane = 0
                order by r.tenant, r.lane, r.seq, r.hi limit 64
            ) b
            limit 64
        ) z
        where z.tenant <> all (p_served)
            and (p_upto is null or (z.tenant < p_from, z.tenant) < (p_upto collate "C" < p_from, p_upto))
        group by z.tenant order by z.tenant < p_from, z.tenant
    loop
        f.jobs := least(f.jobs, case when f.tenant = p_owed and p_first > 0 then p_first when p_weights is null then p_unit
            else p_unit * greatest(1, coalesce((p_weights ->> f.tenant)::int4, 1)) end);
        i := array_position(due_tenant, f.tenant);
        if i is null then
            due_tenant := due_tenant || f.tenant; due_jobs := due_jobs || least(f.jobs, p_most);
        else
            due_jobs[i] := least(due_jobs[i] + f.jobs, p_most);
        end if;
    end loop;
end $$;
