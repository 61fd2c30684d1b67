-- take_straight: take up to p_limit jobs by reading along the index, tenant by tenant, without a descent for each.
--
--   p_from, p_upto   tenants from p_from on and before p_upto, then (p_wrap not null) from the first one on and before p_wrap
--   p_owed           not 0: the tenant p_from gets this many before the turns of others
--   p_unit           jobs in a turn, times the tenant's weight
--   p_window         this many ranges are read
--   p_alone          nothing was taken before: a suspect that is met first may be taken, and then only it
--
-- For plain lanes (no limit keys), of which a tenant has one. A limited job that is committed after `claim` has checked
-- for limited lanes is left for the next claim, because its units are not counted here. Returns what was taken, range
-- by range; n_attempt, n_failures,
-- n_crashes are null when all are 0. `stop`: a suspect was met. `rows`: how many ranges were met; `more`: some of them are
-- beyond their turns; `ring_tenant`: the last tenant of the walk; `ring_owed`: what it is still owed of its turn;
-- `wrapped`: whether it is beyond the end of the ring.
create or replace function headrace.take_straight(
    p_queue text, p_priority int2, p_from text, p_upto text, p_wrap text, p_owed int4, p_limit int4, p_unit int4,
    p_weights jsonb, p_window int4, p_alone bool,
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out rows int4, out more bool, out ring_tenant text, out ring_owed int4, out wrapped bool
) language plpgsql as $$
#variable_conflict use_column
declare
    t_tid   tid[];
    t_end   int4[];                                   -- each range's own end; n_hi is the last place taken
    v_past  int4;
    v_keep  int4;
    x       record;
begin
    -- Ranges are locked in one statement and taken in the next, which sees the locked state. Ranges that other claims
    -- have locked are skipped.
    select array_agg(t.tid) filter (where t.n > 0), array_agg(t.hi) filter (where t.n > 0),
        array_agg(t.tenant) filter (where t.n > 0), array_agg(t.batch) filter (where t.n > 0), array_agg(t.lo) filter (where t.n > 0),
        array_agg(t.lo + t.n - 1) filter (where t.n > 0), sum(t.n) filter (where t.n > 0),
        max(t.past), count(*), min(t.spare) < 0, max(t.part) = 2
    into t_tid, t_end, n_tenant, n_batch, n_lo, n_hi, got, v_past, rows, more, wrapped
    from (
        select w.*, (w.hi - w.lo + 1 + least(w.spare, 0)) as n
        from (
            select f.*, (case when p_owed > 0 and f.tenant = p_from then p_owed when p_weights is null then p_unit
                    else p_unit * greatest(1, coalesce((p_weights ->> f.tenant)::int4, 1)) end
                - sum(f.hi - f.lo + 1) over (partition by f.part, f.tenant order by f.seq, f.hi rows unbounded preceding))::int4 as spare
            from (
                select * from (
                    select 1 as part, r.ctid as tid, r.tenant, r.seq, r.batch, r.lo, r.hi,
                        r.attempt + r.failures + r.crashes + r.suspect::int4 as past
                    from headrace.ready r
                    where r.queue = p_queue and r.priority = p_priority and r.tenant >= p_from and r.tenant < p_upto and r.lane = 0
                    order by r.tenant, r.lane, r.seq, r.hi limit p_window for update skip locked
                ) a
                union all
                select * from (
                    select 2, r.ctid, r.tenant, r.seq, r.batch, r.lo, r.hi, r.attempt + r.failures + r.crashes + r.suspect::int4
                    from headrace.ready r
                    where r.queue = p_queue and r.priority = p_priority and r.tenant < p_wrap and r.lane = 0
                    order by r.tenant, r.lane, r.seq, r.hi limit p_window for update skip locked
                ) b
                limit p_window
            ) f
        ) w
    ) t;
    suspect := false; stop := false; ring_owed := 0;
    if rows = 0 then
        got := 0; more := false;
        return;
    end if;
    v_keep := cardinality(t_tid);
    if got > p_limit then
        -- The last ranges are beyond the wanted number.
        while got - (n_hi[v_keep] - n_lo[v_keep] + 1) >= p_limit loop
            got := got - (n_hi[v_keep] - n_lo[v_keep] + 1);
            v_keep := v_keep - 1;
        end loop;
        n_hi[v_keep] := n_hi[v_keep] - (got - p_limit); got := p_limit;
    end if;
    if v_past > 0 then
        -- Rare: some of them have earlier attempts.
        x := headrace.look_back(t_tid[:v_keep], p_alone);
        n_attempt := x.attempts; n_failures := x.failures; n_crashes := x.crashes; suspect := x.suspect; stop := x.stop;
        if x.keep < v_keep then
            v_keep := x.keep;
            got := (select coalesce(sum(u.hi - u.lo + 1), 0) from unnest(n_lo[:v_keep], n_hi[:v_keep]) u(lo, hi));
            if v_keep = 0 then return; end if;
        end if;
    end if;
    if v_keep < cardinality(t_tid) then
        t_tid := t_tid[:v_keep]; t_end := t_end[:v_keep]; n_tenant := n_tenant[:v_keep];
        n_batch := n_batch[:v_keep]; n_lo := n_lo[:v_keep]; n_hi := n_hi[:v_keep];
    end if;
    -- If the limit, the window or a suspect cuts the last tenant's turn short, it goes on with the next claim.
    ring_tenant := n_tenant[v_keep];
    if stop or got >= p_limit or rows >= p_window then
        ring_owed := case when p_owed > 0 and ring_tenant = p_from then p_owed when p_weights is null then p_unit
            else p_unit * greatest(1, coalesce((p_weights ->> ring_tenant)::int4, 1)) end;
        while v_keep > 0 and n_tenant[v_keep] = ring_tenant loop
            ring_owed := ring_owed - (n_hi[v_keep] - n_lo[v_keep] + 1); v_keep := v_keep - 1;
        end loop;
    end if;
    perform headrace.take_locked(t_tid, t_end, n_hi);
end $$;
