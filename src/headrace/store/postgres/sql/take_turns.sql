-- take_turns: take up to p_quota jobs of one queue and priority whose lanes are all plain (no limit keys), its tenants taking
-- turns.
--
--   p_first               the claim has nothing yet: a suspect may be taken, alone
--   p_weights             tenant → jobs in a turn, relative to a tenant that is not listed (null: all equal)
--   at_tenant, at_owed    where the turns stopped, and what that tenant is still owed of its turn
--
--   d_tenant, d_jobs      tenants that earlier claims passed over, the oldest debt first, and what each is owed
--
-- A tenant's turn is one job for small claims, else a quantum, times its weight. If one survey sees all ranges, the
-- wanted jobs are divided by the weights. A turn that is cut short goes on with the next claim. A tenant from which another
-- claim is just taking is passed over and owed its turn, which a later claim gives before all turns.
--
-- Returns what was taken (n_*, one per range; n_attempt, n_failures, n_crashes null: all 0), the new place of the turns,
-- and what tenants are owed now (due_*; null: none is owed anything).
create or replace function headrace.take_turns(
    p_queue text, p_priority int2, p_quota int4, p_first bool, p_weights jsonb, at_tenant text, at_owed int4,
    d_tenant text[] default null, d_jobs int4[] default null,
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out ring_tenant text, out ring_owed int4, out due_tenant text[], out due_jobs int4[]
) language plpgsql as $$
#variable_conflict use_variable
declare
    -- Names are printable ASCII: x || \x01 comes right after x, and \x7f after all of them.
    v_from   text;
    v_upto   text;
    v_wrap   text;
    v_owed   int4;                                    -- what the first one is owed
    v_first  text;                                    -- the tenant that was owed it
    v_divided bool;                                   -- the wanted jobs are divided among all tenants
    v_window int4;                                    -- ranges of a walk; null: no walk
    v_left   int4 := p_quota;
    v_before int4;                                    -- the same before the lap
    v_mark   int4 := 0;                               -- ranges from before the lap
    v_more   bool;                                    -- a tenant has more than its turn
    v_tries  int4 := 0;
    v_again  bool := false;                           -- a tenant may come twice in what was taken
    -- A claim this small would be full without the tenant whose turn it is, if other claims are taking from that
    -- tenant. A tenant of more weight would lose its turn more often and get less than its share. So wait for it, as
    -- long as this claim holds nothing.
    v_patient bool := p_first and p_quota <= 8 and p_weights is not null and d_tenant is null;
    s        record;                                  -- what the survey of the lap says
    x        record;
begin
    -- Each expression that a claim evaluates costs about half a microsecond, however simple: PostgreSQL prepares it anew in
    -- every transaction. So the survey is used as it is, and what is rare stands behind one condition.
    got := 0; suspect := false; stop := false; ring_tenant := at_tenant; ring_owed := coalesce(at_owed, 0);
    if d_tenant is not null then
        x := headrace.give_owed(p_queue, p_priority, p_quota, p_first, d_tenant, d_jobs);
        due_tenant := x.due_tenant; due_jobs := x.due_jobs;
        if x.got > 0 then
            n_tenant := x.n_tenant; n_batch := x.n_batch; n_lo := x.n_lo; n_hi := x.n_hi;
            n_attempt := x.n_attempt; n_failures := x.n_failures; n_crashes := x.n_crashes;
            got := x.got; v_left := v_left - got; suspect := x.suspect; v_mark := cardinality(n_tenant);
        end if;
        stop := x.stop;
        if stop or v_left = 0 then return; end if;
    end if;
    <<lap>> for v_lap in 1 .. 20 loop
        -- After a large claim, small ones give what is owed in full, or the last tenant on the ring would lose each
        -- time. But other tenants wait for at most a hundred jobs.
        v_first := ring_tenant; v_owed := least(ring_owed, greatest(100, v_left / 2));
        v_wrap := case when v_owed > 0 then ring_tenant else ring_tenant || E'\x01' end;
        v_from := coalesce(v_wrap, ''); v_upto := E'\x7f'; v_window := null; v_divided := false;
        if v_left > 1 then
            s := headrace.survey_turns(p_queue, p_priority, v_left, p_weights, v_from, v_wrap, v_owed);
            exit lap when s.rows = 0;
            if v_patient then
                perform from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant = s.leader and r.lane = 0
                order by r.seq, r.hi limit 1 for update skip locked;
                if not found then
                    perform headrace.wait_for(p_queue, p_priority, s.leader, 0);
                end if;
            end if;
            v_window := s.stretch; v_owed := s.first; v_divided := s.whole and s.jobs > v_left;
        end if;
        if v_left = 1 then
            x := headrace.take_one(p_queue, p_priority, v_from, v_wrap, v_owed, p_weights, p_first and got = 0, v_patient);
            if v_patient and x.got = 0 and x.leader is not null and not x.stop then
                perform headrace.wait_for(p_queue, p_priority, x.leader, 0);
                x := headrace.take_one(p_queue, p_priority, v_from, v_wrap, v_owed, p_weights, p_first and got = 0, false);
            end if;
        elsif v_window is null then
            x := headrace.take_each(p_queue, p_priority, v_left, s.unit, p_first and got = 0, null, p_weights, null, ring_tenant, ring_owed, null, null);
        else
            x := headrace.take_straight(p_queue, p_priority, v_from, v_upto, v_wrap, v_owed, v_left, s.unit, coalesce(s.shares, p_weights), v_window, p_first and got = 0);
        end if;
        v_more := false; v_before := v_left; v_patient := false;
        <<walk>> loop
            if x.got > 0 and got = 0 then
                n_tenant := x.n_tenant; n_batch := x.n_batch; n_lo := x.n_lo; n_hi := x.n_hi;
                n_attempt := x.n_attempt; n_failures := x.n_failures; n_crashes := x.n_crashes;
            elsif x.got > 0 then
                v_again := v_again or v_lap > 1 or v_mark > 0 or x.n_tenant[1] = n_tenant[cardinality(n_tenant)];
                n_attempt := headrace.join_past(n_attempt, n_lo, x.n_attempt, x.n_lo);
                n_failures := headrace.join_past(n_failures, n_lo, x.n_failures, x.n_lo);
                n_crashes := headrace.join_past(n_crashes, n_lo, x.n_crashes, x.n_lo);
                n_tenant := n_tenant || x.n_tenant; n_batch := n_batch || x.n_batch;
                n_lo := n_lo || x.n_lo; n_hi := n_hi || x.n_hi;
            end if;
            if x.got > 0 then
                got := got + x.got; v_left := v_left - x.got; suspect := x.suspect; ring_tenant := x.ring_tenant; ring_owed := x.ring_owed;
            end if;
            stop := x.stop; v_more := v_more or x.more;
            exit walk when v_left = 0 or stop;
            exit walk when v_window is null;
            exit walk when x.rows < v_window;
            -- Go on from the present position, with about as many ranges as are still needed.
            if x.wrapped then
                v_upto := v_wrap; v_wrap := null;
            end if;
            v_owed := x.ring_owed;
            v_from := case when v_owed > 0 then x.ring_tenant else x.ring_tenant || E'\x01' end;
            v_window := least(v_window, greatest(1, v_left * x.rows / x.got * 1.1));
            x := headrace.take_straight(p_queue, p_priority, v_from, v_upto, v_wrap, v_owed, v_left, s.unit, coalesce(s.shares, p_weights), v_window, p_first and got = 0);
        end loop;
        if v_before > 1 and v_left < v_before and not stop then
            if v_window is not null and (v_left > 0 or ring_tenant <> s.upto) and s.upto is not null and (v_divided or not s.whole) then
                -- The walk did not end as the survey said: other claims are taking from tenants here.
                x := headrace.passed_over(p_queue, p_priority, coalesce(s.shares, p_weights),
                    coalesce(case when s.first > 0 then v_first else v_first || E'\x01' end, ''), case when v_left = 0 then ring_tenant end,
                    n_tenant[v_mark + 1:], s.unit, v_first, s.first, greatest(100, p_quota), due_tenant, due_jobs);
                due_tenant := x.due_tenant; due_jobs := x.due_jobs;
            end if;
            if s.last is not null then
                ring_tenant := s.last; ring_owed := s.rest;
            end if;
        end if;
        exit lap when v_left = 0 or stop;
        -- The ring is complete. Tenants that have more than their turn come again.
        if v_left = p_quota then
            exit lap when not p_first or v_tries >= 5;
            -- Another claim is taking from the tenant whose turn it is: wait for it, or the tenant would lose its turn.
            -- This claim holds no ranges yet. A claim that holds ranges never waits.
            v_tries := v_tries + 1;
            x := headrace.next_round(p_queue, p_priority, null, ring_tenant, ring_owed, ring_tenant, ring_tenant is null, 1);
            exit lap when cardinality(x.tenants) = 0;
            perform headrace.wait_for(p_queue, p_priority, x.tenants[1], 0);
        else
            -- Where the jobs were divided among all tenants, the share of a tenant that was passed over is not given to
            -- others: the lease is smaller.
            exit lap when not v_more or v_divided or v_left = v_before;
            v_mark := cardinality(n_tenant);
        end if;
    end loop;
    if v_again then
        x := headrace.in_order(n_tenant, n_batch, n_lo, n_hi, n_attempt, n_failures, n_crashes);
        n_batch := x.n_batch; n_lo := x.n_lo; n_hi := x.n_hi;
        n_attempt := x.n_attempt; n_failures := x.n_failures; n_crashes := x.n_crashes;
    end if;
end $$;

-- join_past: the counts of two groups of ranges, one after the other; null: all 0.
create or replace function headrace.join_past(a int4[], a_lo int4[], b int4[], b_lo int4[]) returns int4[] language sql immutable as $$
    select case when a is not null or b is not null
        then coalesce(a, array_fill(0, array[coalesce(cardinality(a_lo), 0)])) || coalesce(b, array_fill(0, array[coalesce(cardinality(b_lo), 0)])) end
$$;

-- wait_for: wait until no other transaction holds the first range of a lane, for a short time at most, because a user's
-- transaction may hold it.
create or replace function headrace.wait_for(p_queue text, p_priority int2, p_tenant text, p_lane int8) returns void language plpgsql as $$
begin
    perform set_config('lock_timeout', '50ms', true);
    perform from headrace.ready r
    where r.queue = p_queue and r.priority = p_priority and r.tenant = p_tenant and r.lane = p_lane
    order by r.seq, r.hi limit 1 for update;
    perform set_config('lock_timeout', '0', true);
exception when lock_not_available then
    perform set_config('lock_timeout', '0', true);
end $$;
