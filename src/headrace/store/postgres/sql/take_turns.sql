-- take_turns: take up to p_quota jobs of one queue and priority, its tenants taking turns.
--
--   p_token, p_now   the lease that will hold them, the time
--   p_first          the claim has nothing yet: a suspect may be taken, alone
--   p_block          may wait for others who claim under the same limit keys (nothing is held yet that they could wait for)
--   p_tenant         this one only (null: all); p_paused: not these
--   p_weights        tenant → jobs in a turn, as compared with one of a tenant that is not in it (null: all alike)
--   at_tenant, at_owed    where the turns stopped, and what that tenant is still owed of its turn
--   s_tenant, s_lane      which lane was served last, of tenants with several
--   h_tenant, h_lane, h_seq   null: look at everything. Otherwise look at these lanes only, each from this seq on
--
-- A tenant's turn is one job for small claims, else a quantum, times its weight; when all tenants fit into one claim, what
-- is wanted is divided by their weights. A turn that is cut short goes on with the next claim. The lanes of a tenant share its
-- turn. Whoever has nothing that may run now is passed over.
--
-- Answers what was taken (n_*, one per range), the new place of the turns, the lanes served last, when something that was
-- passed over opens by itself, and whether it gave up looking at blocked lanes before it had seen all (`more`).
create or replace function headrace.take_turns(
    p_queue text, p_priority int2, p_quota int4, p_token uuid, p_now timestamptz, p_first bool, p_block bool,
    p_tenant text, p_weights jsonb, p_paused text[], at_tenant text, at_owed int4, s_tenant text[], s_lane int8[],
    h_tenant text[], h_lane int8[], h_seq int8[],
    out n_tenant text[], out n_lane int8[], out n_seq int8[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out ring_tenant text, out ring_owed int4, out served_tenant text[], out served_lane int8[],
    out opens timestamptz, out limited bool, out locked bool, out more bool
) language plpgsql as $$
#variable_conflict use_variable
declare
    v_left    int4 := p_quota;
    v_unit    int4 := greatest(1, p_quota / 50);
    v_most    int4;                                   -- tenants looked at in one round
    v_plain   bool;                                   -- no lane here has limit keys
    v_heads   bool;
    v_circle  bool;                                   -- the tenants of this round are all there are
    v_done    bool := false;                          -- the ring has gone round
    v_round   int4 := 0;
    v_tries   int4 := 0;
    v_met     int4 := 0;                              -- tenants so far
    v_straight bool := false;
    w_tenant text; w_lane int8;                       -- the first lane that was asked for jobs
    v_looks   int4 := 1000;                           -- so many limited lanes may still be looked at
    v_after   text := at_tenant;
    v_wrapped bool := at_tenant is null;
    v_owed    int4 := coalesce(at_owed, 0);
    v_need int4; v_count int4; v_lanes int4; v_deep float8; x record; y record; k record;
    -- tenants of the round: what they have had of their turn, and where the walk over the lanes of each stands
    t_name text[]; t_len int4[]; t_weight int4[]; t_share int4[]; t_got int4[]; t_active bool[]; t_open bool[]; t_unseen bool[];
    t_after int8[]; t_bound int8[]; t_upto int8[]; t_served int8[]; t_lanes int4[]; t_some int4[]; t_keep int4[];
    -- lanes of the pass
    l_of int4[]; l_tenant text[]; l_lane int8[]; l_seq int8[]; l_len int4[]; l_limits text[]; l_quota int4[]; l_rows int4[]; l_took int4[]; l_cap int4[];
    v_of int4[]; v_found int8[]; v_each int4[]; v_ends int4[];
begin
    got := 0; suspect := false; stop := false; limited := false; locked := false; more := false;
    n_tenant := '{}'; n_lane := '{}'; n_seq := '{}'; n_batch := '{}'; n_lo := '{}'; n_hi := '{}';
    n_attempt := '{}'; n_failures := '{}'; n_crashes := '{}';
    ring_tenant := at_tenant; ring_owed := v_owed; served_tenant := '{}'; served_lane := '{}';
    v_most := greatest(2, (p_quota + v_unit - 1) / v_unit);
    v_plain := not exists (select from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.lane <> 0);
    v_heads := v_plain and h_tenant is not null;

    <<ring>> loop
        v_round := v_round + 1;
        -- 1. The tenants of this round, from where the turns stopped.
        t_name := '{}'; t_len := '{}';
        if v_heads or p_tenant is not null then
            t_name := array(
                select u.t from unnest(case when v_heads then h_tenant else array[p_tenant] end) u(t)
                where p_tenant is null or u.t = p_tenant
                order by u.t collate "C" < at_tenant or (u.t = at_tenant and v_owed = 0), u.t collate "C");
            t_len := array_fill(null::int4, array[cardinality(t_name)]);
            v_circle := true; v_done := true;
        else
            v_need := v_most + 1;
            if v_round = 1 and v_owed > 0 then
                select array[r.tenant], array[r.hi - r.lo + 1] into t_name, t_len from headrace.ready r
                where r.queue = p_queue and r.priority = p_priority and r.tenant = at_tenant
                order by r.tenant, r.lane, r.seq, r.hi limit 1;
                t_name := coalesce(t_name, '{}'); t_len := coalesce(t_len, '{}');
            end if;
            v_count := cardinality(t_name);
            select * into x from headrace.next_tenants(p_queue, p_priority, v_after, case when v_wrapped then at_tenant end, v_need - v_count);
            t_name := t_name || x.tenants; t_len := t_len || x.lengths;
            if cardinality(t_name) < v_need and not v_wrapped then
                v_wrapped := true;
                select * into x from headrace.next_tenants(p_queue, p_priority, null, at_tenant, v_need - cardinality(t_name));
                if v_count = 1 and x.tenants[cardinality(x.tenants)] = at_tenant then
                    x.tenants := x.tenants[:cardinality(x.tenants) - 1]; x.lengths := x.lengths[:cardinality(x.lengths) - 1];
                end if;
                t_name := t_name || x.tenants; t_len := t_len || x.lengths;
                -- Those up to here are seen; the next round goes on from the last of them.
            end if;
            v_done := cardinality(t_name) < v_need;
            v_circle := v_round = 1 and v_done;
            t_name := t_name[:v_most]; t_len := t_len[:v_most];
            v_after := t_name[cardinality(t_name)];
            -- Beyond where the ring began: it began anew.
            v_wrapped := v_wrapped and (at_tenant is null or v_after collate "C" <= at_tenant);
        end if;
        exit ring when cardinality(t_name) = 0;
        if p_paused is not null and t_name && p_paused then
            select array_agg(u.t order by u.o), array_agg(u.n order by u.o) into t_name, t_len
            from unnest(t_name, t_len) with ordinality u(t, n, o) where u.t <> all (p_paused);
            if t_name is null then
                exit ring when v_done;
                continue ring;
            end if;
        end if;

        -- 2. Many tenants with little each: straight along the index. Judged by the first ones.
        if v_round = 1 and v_plain and not v_circle and p_paused is null then
            select avg(c.n) into v_deep from unnest(t_name[:6]) u(t) cross join lateral (
                select count(*) as n from (select from headrace.ready r where r.queue = p_queue and r.priority = p_priority
                    and r.tenant = u.t and r.lane = 0 limit 3 * v_unit) z) c;
            if v_deep <= 1.5 * v_unit then
                v_after := at_tenant; v_wrapped := at_tenant is null;
                for i in 1 .. 40 loop
                    select * into x from headrace.take_straight(p_queue, p_priority, v_after, v_owed, case when v_wrapped then at_tenant end,
                        v_left, v_unit, p_weights, greatest(20, (v_left * greatest(1.0, v_deep / v_unit))::int4), p_first and got = 0);
                    if x.got > 0 then
                        n_tenant := n_tenant || x.n_tenant; n_seq := n_seq || x.n_seq; n_batch := n_batch || x.n_batch;
                        n_lo := n_lo || x.n_lo; n_hi := n_hi || x.n_hi; n_attempt := n_attempt || x.n_attempt;
                        n_failures := n_failures || x.n_failures; n_crashes := n_crashes || x.n_crashes;
                        n_lane := n_lane || array_fill(0::int8, array[cardinality(x.n_tenant)]);
                        got := got + x.got; v_left := v_left - x.got; suspect := x.suspect;
                        ring_tenant := x.last_tenant; ring_owed := x.last_owed;
                    end if;
                    stop := x.stop;
                    exit ring when v_left = 0 or stop;
                    if x.rows > 0 then
                        v_after := x.last_tenant; v_owed := x.last_owed;
                    else
                        exit when v_wrapped;
                        v_wrapped := true; v_after := null; v_owed := 0;
                    end if;
                end loop;
                v_straight := true; v_done := true; w_tenant := t_name[1]; w_lane := 0;
            end if;
        end if;

        -- 3. The lanes of these tenants: one each, or to be looked for.
        v_count := cardinality(t_name); v_lanes := 4;
        t_weight := case when p_weights is null then array_fill(1, array[v_count]) else array(
            select greatest(1, coalesce((p_weights ->> u.t)::int4, 1)) from unnest(t_name) with ordinality u(t, o) order by u.o) end;
        t_got := array_fill(0, array[v_count]); t_active := array_fill(not v_straight, array[v_count]);
        if v_plain then
            l_of := array(select generate_series(1, v_count)); l_tenant := t_name; l_len := t_len;
            l_lane := array_fill(0::int8, array[v_count]); l_seq := l_lane; l_limits := null; l_rows := t_got;
            if v_heads then
                select array_agg(h.s order by u.o) into l_seq
                from unnest(t_name) with ordinality u(t, o) join unnest(h_tenant, h_seq) h(t, s) on h.t = u.t;
            end if;
            t_unseen := array_fill(false, array[v_count]);
        else
            l_of := '{}'; l_tenant := '{}'; l_len := '{}'; l_lane := '{}'; l_seq := '{}'; l_limits := '{}'; l_rows := '{}';
            t_unseen := array_fill(true, array[v_count]); t_lanes := t_got;
            t_served := array_fill(null::int8, array[v_count]); t_bound := t_served; t_upto := t_served;
            if s_tenant is not null then
                t_upto := array(select s_lane[array_position(s_tenant, u.t)] from unnest(t_name) with ordinality u(t, o) order by u.o);
            end if;
            t_after := t_upto;
        end if;

        <<pass>> for v_pass in 1 .. 40 loop
            t_open := t_active;
            if not v_plain then
                -- On with the lanes of tenants that were not looked at in full.
                t_some := array(select u.o::int4 from unnest(t_unseen, t_active) with ordinality u(unseen, active, o)
                    where u.unseen and u.active order by 1);
                if cardinality(t_some) > 0 and v_looks > 0 then
                    v_lanes := greatest(1, least(greatest(v_lanes, v_left / cardinality(t_some)), v_looks / cardinality(t_some)));
                    select * into x from headrace.next_lanes(p_queue, p_priority,
                        array(select t_name[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
                        array(select t_after[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
                        array(select t_bound[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
                        array(select t_upto[i] from unnest(t_some) with ordinality u(i, o) order by u.o), v_lanes);
                    v_of := x.of; v_found := x.lanes; v_each := array_fill(0, array[v_count]);
                    for i in 1 .. cardinality(v_of) loop
                        v_need := t_some[v_of[i]];
                        v_each[v_need] := v_each[v_need] + 1;
                        if t_upto[v_need] is not null and v_found[i] <= t_upto[v_need] then
                            -- Round the corner: from here to where the walk began.
                            t_bound[v_need] := t_upto[v_need]; t_upto[v_need] := null;
                        end if;
                        t_after[v_need] := v_found[i];
                        l_of := l_of || v_need; l_tenant := l_tenant || t_name[v_need];
                    end loop;
                    l_lane := l_lane || x.lanes; l_len := l_len || x.lengths; l_limits := l_limits || x.limits;
                    l_seq := array_fill(0::int8, array[cardinality(l_lane)]);
                    l_rows := l_rows || array_fill(0, array[cardinality(x.lanes)]);
                    foreach v_need in array t_some loop
                        t_unseen[v_need] := v_each[v_need] >= v_lanes; t_lanes[v_need] := t_lanes[v_need] + v_each[v_need];
                    end loop;
                    v_looks := v_looks - cardinality(x.lanes);
                    v_lanes := v_lanes * 8;
                end if;
                -- Which lanes are open.
                select * into k from headrace.count_units(l_limits, p_block and got = 0, p_now);
                opens := least(opens, k.opens); locked := locked or k.locked;
                t_open := array_fill(false, array[v_count]); l_cap := k.l_cap;
                for i in 1 .. cardinality(l_of) loop
                    if l_cap[i] > 0 and t_active[l_of[i]] then t_open[l_of[i]] := true; end if;
                end loop;
            end if;

            -- 4. A share for each tenant, split over its lanes.
            select * into y from headrace.share_turns(t_open, t_weight, t_got, v_left, case when not v_circle then v_unit end,
                case when v_round = 1 and got = 0 and t_name[1] = at_tenant then v_owed else 0 end);
            t_share := y.shares;
            if y.last is not null then
                ring_tenant := t_name[y.last]; ring_owed := y.owed;
            elsif v_plain or v_looks <= 0 or not exists (select from unnest(t_unseen, t_active) u(a, b) where u.a and u.b) then
                exit pass;
            else
                -- Nothing open among those seen so far.
                l_of := '{}'; l_tenant := '{}'; l_len := '{}'; l_lane := '{}'; l_seq := '{}'; l_limits := '{}'; l_rows := '{}';
                t_active := t_unseen;
                continue pass;
            end if;
            if not v_plain then
                l_quota := headrace.share_units(l_of, k.l_cap, t_share, k.k_lane, k.k_key, k.k_cost, k.f_free);
            elsif v_pass = 1 then
                l_quota := t_share;
            else
                l_quota := array(select t_share[u.i] from unnest(l_of) with ordinality u(i, o) order by u.o);
            end if;
            for i in 1 .. cardinality(l_of) loop
                -- About as many rows as the quota needs, judged by the lane's first one.
                l_rows[i] := case when l_rows[i] > 0 then least(l_quota[i], l_rows[i] * 4)
                    when l_len[i] is null then least(l_quota[i], 2) when l_len[i] >= l_quota[i] then 1
                    else least(l_quota[i], (l_quota[i] + l_len[i] - 1) / l_len[i] + 1) end;
                if l_quota[i] > 0 then
                    if w_tenant is null then
                        w_tenant := l_tenant[i]; w_lane := l_lane[i];
                    end if;
                    if not v_plain then t_served[l_of[i]] := l_lane[i]; end if;
                end if;
            end loop;

            -- 5. Take them.
            select * into x from headrace.take_ranges(p_queue, p_priority, l_tenant, l_lane, l_seq, l_quota, l_rows,
                v_left, p_first and got = 0);
            if x.got > 0 then
                n_tenant := n_tenant || x.n_tenant; n_lane := n_lane || x.n_lane; n_seq := n_seq || x.n_seq; n_batch := n_batch || x.n_batch;
                n_lo := n_lo || x.n_lo; n_hi := n_hi || x.n_hi; n_attempt := n_attempt || x.n_attempt;
                n_failures := n_failures || x.n_failures; n_crashes := n_crashes || x.n_crashes;
                got := got + x.got; v_left := v_left - x.got; suspect := x.suspect;
                if not v_plain then
                    l_took := array_fill(0, array[cardinality(l_of)]); v_of := x.n_of; v_each := x.n_lo; v_ends := x.n_hi;
                    for i in 1 .. cardinality(v_of) loop
                        l_took[v_of[i]] := l_took[v_of[i]] + v_ends[i] - v_each[i] + 1;
                    end loop;
                    if exists (select from unnest(l_limits, l_took) u(k, n) where u.n > 0 and u.k is not null) then
                        limited := true;
                        perform headrace.hold_units(p_token, l_limits, l_took, p_now);
                    end if;
                end if;
            end if;
            stop := x.stop;
            if stop then
                -- The next claim meets the suspect first.
                if x.got > 0 then
                    ring_tenant := n_tenant[cardinality(n_tenant)]; ring_owed := 0;
                end if;
                exit ring;
            end if;
            exit pass when v_left = 0;
            if got = 0 and p_first and not v_heads and w_tenant is not null and v_tries < 5 then
                -- Whose turn it is is just being taken from by another claim: wait for that, or it would lose its turn. Nothing
                -- is held here that others wait for: who holds ranges waits for nobody.
                v_tries := v_tries + 1;
                perform headrace.wait_for(p_queue, p_priority, w_tenant, w_lane);
                w_tenant := null;
                continue pass;
            end if;

            -- 6. Who may have more: lanes that gave all that was asked for, tenants not asked or not looked at in full.
            v_of := coalesce(x.n_of, '{}'); v_each := x.n_lo; v_ends := x.n_hi;
            for i in 1 .. cardinality(v_of) loop
                t_got[l_of[v_of[i]]] := t_got[l_of[v_of[i]]] + v_ends[i] - v_each[i] + 1;
            end loop;
            -- And lanes whose units were all meant for lanes before them, which may not have needed them.
            t_keep := array(select u.o::int4 from unnest(l_of, l_quota) with ordinality u(i, q, o)
                where (t_share[u.i] = 0 and t_open[u.i]) or (u.q > 0 and u.o = any (x.more))
                    or (not v_plain and u.q = 0 and l_cap[u.o] > 0) order by 1);
            t_some := array(select distinct l_of[m] from unnest(t_keep) m);
            t_active := array(
                select u.active and (u.o = any (t_some) or (u.unseen and v_looks > 0)) and (v_circle or u.got < v_unit * u.weight)
                from unnest(t_active, t_unseen, t_got, t_weight) with ordinality u(active, unseen, got, weight, o) order by u.o);
            exit pass when not (true = any (t_active));
            select coalesce(array_agg(l_of[m] order by m), '{}'), coalesce(array_agg(l_tenant[m] order by m), '{}'),
                coalesce(array_agg(l_lane[m] order by m), '{}'), coalesce(array_agg(l_seq[m] order by m), '{}'),
                coalesce(array_agg(l_len[m] order by m), '{}'), coalesce(array_agg(l_limits[m] order by m), '{}'),
                coalesce(array_agg(l_rows[m] order by m), '{}')
            into l_of, l_tenant, l_lane, l_seq, l_len, l_limits, l_rows
            from unnest(t_keep) m where t_active[l_of[m]];
        end loop;

        if not v_plain then
            for i in 1 .. v_count loop
                if t_lanes[i] > 1 and t_served[i] is not null then
                    served_tenant := served_tenant || t_name[i]; served_lane := served_lane || t_served[i];
                end if;
            end loop;
            if v_looks <= 0 and v_left > 0 then
                -- Enough for one claim: the next one goes on where this one stands.
                more := true;
                for i in 1 .. v_count loop
                    if t_unseen[i] then
                        served_tenant := served_tenant || t_name[i]; served_lane := served_lane || t_after[i];
                    end if;
                end loop;
                ring_tenant := t_name[v_count]; ring_owed := case when t_unseen[v_count] then 1 else 0 end;
                exit ring;
            end if;
        end if;
        exit ring when v_left = 0;
        if v_done then
            exit ring when got > 0 or not p_first or not v_straight or v_tries >= 5;
            -- Everything seen here was being taken by others.
            v_tries := v_tries + 1;
            perform headrace.wait_for(p_queue, p_priority, w_tenant, w_lane);
            v_round := 0; v_after := at_tenant; v_wrapped := at_tenant is null; v_owed := coalesce(at_owed, 0);
            v_straight := false; w_tenant := null;
        end if;
        -- These had less than their turns: more tenants next, with turns of about what was found, so that one pass is enough.
        v_met := v_met + v_count;
        v_unit := least(v_unit, greatest(1, (got + v_met - 1) / v_met));
        v_most := least(500, greatest(2, v_left / v_unit, case when got = 0 then v_most * 2 end));
    end loop;
    if got = 0 and not more then
        ring_tenant := at_tenant; ring_owed := coalesce(at_owed, 0);
    end if;
end $$;

-- wait_for: until nobody else holds the first range of a lane, or for a moment: it may be in a user's transaction.
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
