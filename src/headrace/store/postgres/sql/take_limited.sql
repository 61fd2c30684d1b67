-- take_limited: take up to p_quota jobs of one queue and priority where lanes may have limit keys, its tenants taking turns.
--
--   p_token, p_now    the lease that will hold them, the time
--   p_block           may wait for other claims that count the same limit keys, because this one holds no key and no
--                     range yet
--   p_tenant          this one only (null: all); p_paused: not these
--   s_tenant, s_lane  the lane that was served last, of tenants with several
--   p_looks           this many lanes may be checked
--   p_first, p_weights, at_*   as in `take_turns`
--
-- The lanes of a tenant share its turn, in turns. Tenants without a job that may run now are skipped.
--
-- Returns what was taken (n_*, one per range; n_attempt, n_failures, n_crashes null: all 0), the new place of the
-- turns, the lanes
-- served last, when a skipped lane opens by itself, whether the lease holds units of a key,
-- whether it stopped checking blocked lanes before the last one (`more`), and a key that another claim was counting
-- while this one
-- could not wait for it (`busy`, as in `count_units`).
create or replace function headrace.take_limited(
    p_queue text, p_priority int2, p_quota int4, p_token uuid, p_now timestamptz, p_first bool, p_block bool,
    p_tenant text, p_weights jsonb, p_paused text[], at_tenant text, at_owed int4, s_tenant text[], s_lane int8[],
    p_looks int4,
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out ring_tenant text, out ring_owed int4, out served_tenant text[], out served_lane int8[],
    out opens timestamptz, out limited bool, out more bool, out busy int4
) language plpgsql as $$
#variable_conflict use_variable
declare
    v_left    int4 := p_quota;
    v_unit    int4 := greatest(1, p_quota / 50);
    v_most    int4;                                   -- tenants asked in one round
    v_circle  bool;                                   -- the round has all tenants
    v_done    bool;                                   -- the ring has gone round
    v_round   int4 := 0;
    v_tries   int4 := 0;
    v_block   bool := p_block;                        -- no key and no range is held yet
    v_met     int4 := 0;                              -- tenants so far
    v_looks   int4 := p_looks;                        -- this many lanes may still be checked
    v_after   text := at_tenant;
    v_wrapped bool := at_tenant is null;
    v_owed    int4 := coalesce(at_owed, 0);
    v_lanes   int4;                                   -- lanes of each tenant that are checked next
    v_count int4; v_asked int4; x record; y record; k record;
    -- tenants of the round: jobs had of their turn, and the position in the lanes of each
    t_name text[]; t_weight int4[]; t_share int4[]; t_got int4[]; t_active bool[]; t_open bool[]; t_unseen bool[]; t_some int4[];
    t_after int8[]; t_bound int8[]; t_upto int8[]; t_served int8[]; t_lanes int4[];
    -- lanes of the pass
    l_of int4[]; l_tenant text[]; l_lane int8[]; l_len int4[]; l_limits text[]; l_quota int4[]; l_rows int4[]; l_took int4[]; l_keep int4[];
begin
    got := 0; suspect := false; stop := false; limited := false; more := false;
    ring_tenant := at_tenant; ring_owed := v_owed; served_tenant := '{}'; served_lane := '{}';
    v_most := greatest(2, (p_quota + v_unit - 1) / v_unit);

    <<ring>> loop
        v_round := v_round + 1;
        -- 1. The tenants of this round, from where the turns stopped.
        if p_tenant is not null then
            t_name := array[p_tenant]; v_circle := true; v_done := true;
        else
            x := headrace.next_round(p_queue, p_priority, p_paused, at_tenant, case when v_round = 1 then v_owed else 0 end, v_after, v_wrapped, v_most);
            t_name := x.tenants; v_after := x.after; v_wrapped := x.wrapped; v_done := x.done;
            v_circle := v_round = 1 and v_done;
        end if;
        v_count := cardinality(t_name); v_lanes := 4;
        if v_count = 0 then
            exit ring when v_done;
            continue ring;
        end if;
        t_weight := case when p_weights is null then array_fill(1, array[v_count]) else array(
            select greatest(1, coalesce((p_weights ->> u.t)::int4, 1)) from unnest(t_name) with ordinality u(t, o) order by u.o) end;
        t_got := array_fill(0, array[v_count]); t_lanes := t_got; t_active := array_fill(true, array[v_count]); t_unseen := t_active;
        t_served := array_fill(null::int8, array[v_count]); t_bound := t_served; t_upto := t_served;
        if s_tenant is not null then
            t_upto := array(select s_lane[array_position(s_tenant, u.t)] from unnest(t_name) with ordinality u(t, o) order by u.o);
        end if;
        t_after := t_upto;
        l_of := '{}'; l_tenant := '{}'; l_len := '{}'; l_lane := '{}'; l_limits := '{}'; l_rows := '{}';

        <<pass>> for v_pass in 1 .. 40 loop
            -- 2. Read further lanes of tenants that were not read completely, and find the open ones.
            t_some := array(select u.o::int4 from unnest(t_unseen, t_active) with ordinality u(unseen, active, o)
                where u.unseen and u.active order by 1);
            if cardinality(t_some) > 0 and v_looks > 0 then
                v_lanes := greatest(1, least(greatest(v_lanes, v_left / cardinality(t_some)), v_looks / cardinality(t_some)));
                x := headrace.more_lanes(p_queue, p_priority, t_name, t_some, v_lanes, t_after, t_bound, t_upto);
                t_after := x.t_after; t_bound := x.t_bound; t_upto := x.t_upto;
                l_of := l_of || x.l_of; l_tenant := l_tenant || x.l_tenant; l_lane := l_lane || x.l_lane; l_len := l_len || x.l_len;
                l_limits := l_limits || x.l_limits; l_rows := l_rows || array_fill(0, array[cardinality(x.l_lane)]);
                foreach v_asked in array t_some loop
                    t_unseen[v_asked] := x.t_found[v_asked] >= v_lanes; t_lanes[v_asked] := t_lanes[v_asked] + x.t_found[v_asked];
                end loop;
                v_looks := v_looks - cardinality(x.l_lane);
                v_lanes := v_lanes * 8;
            end if;
            k := headrace.count_units(l_limits, v_block, p_now);
            v_block := v_block and not k.locked; busy := coalesce(busy, k.busy); opens := least(opens, k.opens);
            t_open := headrace.open_tenants(t_active, l_of, k.l_cap);

            -- 3. A share for each tenant, split over its lanes.
            y := headrace.share_turns(t_open, t_weight, t_got, v_left, case when not v_circle then v_unit end,
                case when v_round = 1 and got = 0 and t_name[1] = at_tenant then v_owed else 0 end);
            if y.last is null then
                exit pass when v_looks <= 0 or not exists (select from unnest(t_unseen, t_active) u(a, b) where u.a and u.b);
                -- No lane that was read so far is open.
                l_of := '{}'; l_tenant := '{}'; l_len := '{}'; l_lane := '{}'; l_limits := '{}'; l_rows := '{}';
                t_active := t_unseen;
                continue pass;
            end if;
            t_share := y.shares; ring_tenant := t_name[y.last]; ring_owed := y.owed;
            l_quota := headrace.share_units(l_of, k.l_cap, t_share, k.k_lane, k.k_key, k.k_cost, k.f_free, k.f_one);
            l_rows := headrace.rows_for(l_quota, l_rows, l_len);
            v_asked := null;
            for i in 1 .. cardinality(l_of) loop
                if l_quota[i] > 0 then
                    v_asked := coalesce(v_asked, i); t_served[l_of[i]] := l_lane[i];
                end if;
            end loop;

            -- 4. Take them, and hold their units.
            x := headrace.take_ranges(p_queue, p_priority, l_tenant, l_lane, null, l_quota, l_rows, v_left, p_first and got = 0);
            stop := x.stop; v_block := false;
            if x.got > 0 then
                n_attempt := headrace.join_past(n_attempt, n_lo, x.n_attempt, x.n_lo);
                n_failures := headrace.join_past(n_failures, n_lo, x.n_failures, x.n_lo);
                n_crashes := headrace.join_past(n_crashes, n_lo, x.n_crashes, x.n_lo);
                n_tenant := n_tenant || x.n_tenant; n_batch := n_batch || x.n_batch;
                n_lo := n_lo || x.n_lo; n_hi := n_hi || x.n_hi;
                got := got + x.got; v_left := v_left - x.got; suspect := x.suspect;
                l_took := headrace.add_up(array_fill(0, array[cardinality(l_of)]), x.n_of, x.n_lo, x.n_hi);
                if exists (select from unnest(l_limits, l_took) u(k, n) where u.n > 0 and u.k is not null) then
                    limited := true;
                    perform headrace.hold_units(p_token, l_limits, l_took, p_now);
                end if;
                for i in 1 .. cardinality(l_of) loop
                    t_got[l_of[i]] := t_got[l_of[i]] + l_took[i];
                end loop;
                if stop then
                    -- The next claim meets the suspect first.
                    ring_tenant := n_tenant[cardinality(n_tenant)]; ring_owed := 0;
                end if;
            end if;
            exit ring when stop;
            exit pass when v_left = 0;
            if got = 0 and p_first and v_asked is not null and v_tries < 5 then
                -- Other claims are taking from this tenant: as in `take_turns`.
                v_tries := v_tries + 1;
                perform headrace.wait_for(p_queue, p_priority, l_tenant[v_asked], l_lane[v_asked]);
                continue pass;
            end if;

            -- 5. What may have more: lanes that gave all that was asked for, tenants not asked or not read completely,
            -- and lanes whose units were reserved for earlier lanes, which may not have needed them.
            l_keep := array(select u.o::int4 from unnest(l_of, l_quota) with ordinality u(i, q, o)
                where (t_share[u.i] = 0 and t_open[u.i]) or (u.q > 0 and u.o = any (x.more)) or (u.q = 0 and k.l_cap[u.o] > 0) order by 1);
            t_some := array(select distinct l_of[m] from unnest(l_keep) m);
            t_active := array(
                select u.active and (u.o = any (t_some) or (u.unseen and v_looks > 0)) and (v_circle or u.got < v_unit * u.weight)
                from unnest(t_active, t_unseen, t_got, t_weight) with ordinality u(active, unseen, got, weight, o) order by u.o);
            exit pass when not (true = any (t_active));
            select coalesce(array_agg(l_of[m] order by m), '{}'), coalesce(array_agg(l_tenant[m] order by m), '{}'),
                coalesce(array_agg(l_lane[m] order by m), '{}'), coalesce(array_agg(l_len[m] order by m), '{}'),
                coalesce(array_agg(l_limits[m] order by m), '{}'), coalesce(array_agg(l_rows[m] order by m), '{}')
            into l_of, l_tenant, l_lane, l_len, l_limits, l_rows
            from unnest(l_keep) m where t_active[l_of[m]];
        end loop;

        for i in 1 .. v_count loop
            if t_lanes[i] > 1 and t_served[i] is not null then
                served_tenant := served_tenant || t_name[i]; served_lane := served_lane || t_served[i];
            end if;
        end loop;
        if v_looks <= 0 and v_left > 0 and (not v_done or true = any (t_unseen)) then
            -- This is enough for one claim. The next one goes on from here.
            more := true;
            for i in 1 .. v_count loop
                if t_unseen[i] then
                    served_tenant := served_tenant || t_name[i]; served_lane := served_lane || t_after[i];
                end if;
            end loop;
            ring_tenant := t_name[v_count]; ring_owed := case when t_unseen[v_count] then 1 else 0 end;
            exit ring;
        end if;
        exit ring when v_left = 0 or v_done;
        -- These tenants had less than their turns. The next round has more tenants, with turns of about what was found.
        v_met := v_met + v_count;
        v_unit := least(v_unit, greatest(1, (got + v_met - 1) / v_met));
        v_most := least(500, greatest(2, v_left / v_unit, case when got = 0 then v_most * 2 end));
    end loop;
    if got = 0 and not more then
        ring_tenant := at_tenant; ring_owed := coalesce(at_owed, 0);
    end if;
end $$;

-- open_tenants: which of the remaining tenants have an open lane. Lanes are as in `count_units`.
create or replace function headrace.open_tenants(t_active bool[], l_of int4[], l_cap int4[]) returns bool[] language plpgsql immutable as $$
declare
    t_open bool[] := array_fill(false, array[cardinality(t_active)]);
begin
    for i in 1 .. cardinality(l_of) loop
        if l_cap[i] > 0 and t_active[l_of[i]] then t_open[l_of[i]] := true; end if;
    end loop;
    return t_open;
end $$;
