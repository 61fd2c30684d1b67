-- take_straight: take from many shallow tenants by walking straight along the index, without a descent for each.
--
-- For plain lanes only (no limit keys), one lane per tenant. Each tenant's turn is p_unit jobs times its weight; p_owed: what
-- the tenant p_from is still owed of its turn, and then the walk begins with it, otherwise after it. p_upto: the last one
-- looked at (null: to the end). p_window ranges are looked at.
--
-- Answers like `take_ranges`, and where the walk stood at the end: its tenant and what that is still owed; `rows`: how many
-- ranges were met.
create or replace function headrace.take_straight(
    p_queue text, p_priority int2, p_from text, p_owed int4, p_upto text, p_limit int4, p_unit int4, p_weights jsonb,
    p_window int4, p_alone bool,
    out n_tenant text[], out n_seq int8[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out last_tenant text, out last_owed int4, out rows int4
) language plpgsql as $$
#variable_conflict use_column
declare
    v_begin   text := case when p_owed > 0 then p_from else coalesce(p_from || E'\x01', '') end;
    t_tid     tid[];
    t_end     int4[];
    t_suspect bool[];
    t_left    int4[];                                 -- what is left of each tenant's turn after this range
    v_past    int4;
    v_keep    int4;
begin
    with found as materialized (
        select r.ctid as tid, r.tenant, r.seq, r.batch, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect
        from headrace.ready r
        where r.queue = p_queue and r.priority = p_priority and r.tenant >= v_begin and (p_upto is null or r.tenant <= p_upto)
        order by r.tenant, r.lane, r.seq, r.hi
        limit p_window
        for update skip locked
    ), turn as (
        select f.*, case when p_owed > 0 and f.tenant = p_from then p_owed
                when p_weights is null then p_unit else p_unit * greatest(1, coalesce((p_weights ->> f.tenant)::int4, 1)) end
            - coalesce(sum(f.hi - f.lo + 1) over (partition by f.tenant order by f.seq, f.hi
                rows between unbounded preceding and 1 preceding), 0) as left
        from found f
    ), share as (
        select t.*, p_limit - coalesce(sum(least(t.hi - t.lo + 1, t.left)) over (order by t.tenant, t.seq, t.hi
            rows between unbounded preceding and 1 preceding), 0) as room
        from turn t where t.left > 0
    )
    select array_agg(s.tid), array_agg(s.hi), max(s.attempt + s.failures + s.crashes + s.suspect::int4),
        array_agg((s.left - least(s.hi - s.lo + 1, s.left, s.room))::int4), array_agg(s.tenant), array_agg(s.seq), array_agg(s.batch),
        array_agg(s.lo), array_agg((s.lo + least(s.hi - s.lo + 1, s.left, s.room) - 1)::int4), coalesce(sum(least(s.hi - s.lo + 1, s.left, s.room)), 0),
        (select count(*) from found), (select f.tenant from found f order by f.tenant desc limit 1)
    into t_tid, t_end, v_past, t_left, n_tenant, n_seq, n_batch, n_lo, n_hi, got,
        rows, last_tenant
    from share s where s.room > 0;
    suspect := false; stop := false; last_owed := 0;
    if n_tenant is null then
        got := 0;
        return;
    end if;
    n_attempt := array_fill(0, array[cardinality(n_tenant)]); n_failures := n_attempt; n_crashes := n_attempt;
    if v_past > 0 then
        -- Seldom: some of them have a past.
        select array_agg(r.attempt order by u.o), array_agg(r.failures order by u.o), array_agg(r.crashes order by u.o),
            array_agg(r.suspect order by u.o)
        into n_attempt, n_failures, n_crashes, t_suspect
        from unnest(t_tid) with ordinality u(tid, o) join headrace.ready r on r.ctid = u.tid;
    end if;
    if true = any (t_suspect) then
        stop := true;
        v_keep := array_position(t_suspect, true);
        suspect := v_keep = 1 and p_alone;
        if v_keep = 1 and not suspect then
            n_tenant := null; got := 0;
            return;
        end if;
        v_keep := greatest(v_keep - 1, 1);
        t_tid := t_tid[:v_keep]; t_end := t_end[:v_keep]; t_left := t_left[:v_keep]; n_tenant := n_tenant[:v_keep];
        n_seq := n_seq[:v_keep]; n_batch := n_batch[:v_keep]; n_lo := n_lo[:v_keep]; n_hi := n_hi[:v_keep];
        n_attempt := n_attempt[:v_keep]; n_failures := n_failures[:v_keep]; n_crashes := n_crashes[:v_keep];
        got := (select sum(u.hi - u.lo + 1) from unnest(n_lo, n_hi) u(lo, hi));
    end if;
    -- Cut short by the limit, the window or a suspect, the last tenant's turn goes on with the next claim.
    v_keep := cardinality(n_tenant);
    if stop or got >= p_limit or last_tenant = n_tenant[v_keep] then
        last_tenant := n_tenant[v_keep];
        last_owed := case when got >= p_limit or stop or rows >= p_window then t_left[v_keep] else 0 end;
    end if;
    if t_end = n_hi then
        delete from headrace.ready r where r.ctid = any (t_tid);
    else
        delete from headrace.ready r
        where r.ctid = any (array(select u.tid from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where u.own = u.taken));
        update headrace.ready r set lo = u.taken + 1
        from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where r.ctid = u.tid and u.own > u.taken;
    end if;
end $$;
