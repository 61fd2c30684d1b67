-- take_each: take up to p_quota jobs of one queue and priority from tenant to tenant, each by a descent of the index:
-- for tenants that have many jobs each, or that are given. Plain lanes only, as `take_turns`, which explains p_first,
-- p_weights, at_*.
--
--   p_unit            jobs in a turn
--   p_tenant          this one only (null: all); p_paused: not these
--   h_tenant, h_seq   null: read everything. Otherwise read these tenants only, each from this seq
--
-- Returns the same as `take_turns`; ring_*: the new place of the turns; more: a tenant had more than its turn.
create or replace function headrace.take_each(
    p_queue text, p_priority int2, p_quota int4, p_unit int4, p_first bool, p_tenant text, p_weights jsonb, p_paused text[],
    at_tenant text, at_owed int4, h_tenant text[], h_seq int8[],
    out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out suspect bool, out stop bool,
    out ring_tenant text, out ring_owed int4, out more bool
) language plpgsql as $$
#variable_conflict use_variable
declare
    v_left   int4 := p_quota;
    v_unit   int4 := p_unit;
    v_most   int4 := greatest(2, (p_quota + p_unit - 1) / p_unit);      -- tenants asked in one round
    v_given  bool := h_tenant is not null or p_tenant is not null;
    v_owed   int4 := coalesce(at_owed, 0);
    v_after  text := at_tenant;
    v_wrapped bool := at_tenant is null;
    v_done   bool;                                    -- the ring has gone round
    v_circle bool;                                    -- the round has all tenants
    v_round  int4 := 0;
    v_met    int4 := 0;                               -- tenants so far
    v_first  text;                                    -- the first of them
    v_tries  int4 := 0;
    x record; y record;
    -- tenants of the round that may have more: the length of their first range, jobs had of their turn, ranges read
    t_name text[]; t_len int4[]; t_seq int8[]; t_weight int4[]; t_got int4[]; t_rows int4[]; t_share int4[]; t_keep int4[];
begin
    got := 0; suspect := false; stop := false; more := false; ring_tenant := at_tenant; ring_owed := v_owed;
    <<ring>> loop
        v_round := v_round + 1;
        -- 1. The tenants of this round, from where the turns stopped.
        if v_given then
            select array_agg(u.t order by u.t < at_tenant or (u.t = at_tenant and v_owed = 0), u.t),
                array_agg(u.s order by u.t < at_tenant or (u.t = at_tenant and v_owed = 0), u.t)
            into t_name, t_seq
            from (select g.t collate "C" as t, g.s from unnest(coalesce(h_tenant, array[p_tenant]), h_seq) g(t, s)) u
            where (p_tenant is null or u.t = p_tenant) and (p_paused is null or u.t <> all (p_paused));
            t_len := null; v_circle := true; v_done := true;
        else
            x := headrace.next_round(p_queue, p_priority, p_paused, at_tenant, case when v_round = 1 then v_owed else 0 end, v_after, v_wrapped, v_most);
            t_name := x.tenants; t_len := x.lengths; v_after := x.after; v_wrapped := x.wrapped; v_done := x.done;
            v_circle := v_round = 1 and v_done;
        end if;
        exit ring when v_done and coalesce(cardinality(t_name), 0) = 0;
        v_met := v_met + cardinality(t_name);
        if v_first is null then v_first := t_name[1]; end if;
        t_weight := case when p_weights is null then array_fill(1, array[cardinality(t_name)]) else array(
            select greatest(1, coalesce((p_weights ->> u.t)::int4, 1)) from unnest(t_name) with ordinality u(t, o) order by u.o) end;
        t_got := array_fill(0, array[cardinality(t_name)]); t_rows := t_got;

        <<pass>> while cardinality(t_name) > 0 loop
            -- 2. A share for each, and about as many ranges as it needs, judged by the first one.
            y := headrace.share_turns(array_fill(true, array[cardinality(t_name)]), t_weight, t_got, v_left, case when not v_circle then v_unit end,
                case when v_round = 1 and got = 0 and t_name[1] = at_tenant then v_owed else 0 end);
            exit pass when y.last is null;
            t_share := y.shares;
            t_rows := headrace.rows_for(t_share, t_rows, t_len);
            -- 3. Take them.
            x := headrace.take_ranges(p_queue, p_priority, t_name, array_fill(0::int8, array[cardinality(t_name)]), t_seq, t_share, t_rows, v_left, p_first and got = 0);
            stop := x.stop;
            if x.got > 0 then
                n_attempt := headrace.join_past(n_attempt, n_lo, x.n_attempt, x.n_lo);
                n_failures := headrace.join_past(n_failures, n_lo, x.n_failures, x.n_lo);
                n_crashes := headrace.join_past(n_crashes, n_lo, x.n_crashes, x.n_lo);
                n_tenant := n_tenant || x.n_tenant; n_batch := n_batch || x.n_batch;
                n_lo := n_lo || x.n_lo; n_hi := n_hi || x.n_hi;
                got := got + x.got; v_left := v_left - x.got; suspect := x.suspect;
                ring_tenant := t_name[y.last]; ring_owed := y.owed;
                if stop then
                    -- The next claim meets the suspect first.
                    ring_tenant := n_tenant[cardinality(n_tenant)]; ring_owed := 0;
                end if;
            end if;
            exit ring when stop or v_left = 0;
            -- 4. Tenants that may have more: those that gave all that was asked for, and those not asked.
            t_got := headrace.add_up(t_got, x.n_of, x.n_lo, x.n_hi);
            t_keep := array(select u.o::int4 from unnest(t_share, t_got, t_weight) with ordinality u(share, got, weight, o)
                where (u.share = 0 or u.o = any (x.more)) and (v_circle or u.got < v_unit * u.weight) order by 1);
            more := more or (not v_circle and coalesce(cardinality(x.more), 0) > 0);
            select array_agg(t_name[k] order by k), array_agg(t_len[k] order by k), array_agg(t_weight[k] order by k), array_agg(t_got[k] order by k),
                array_agg(t_rows[k] order by k), case when t_seq is not null then array_agg(t_seq[k] order by k) end
            into t_name, t_len, t_weight, t_got, t_rows, t_seq
            from unnest(t_keep) k;
        end loop;
        if v_done then
            exit ring when got > 0 or not p_first or h_tenant is not null or v_tries >= 5 or not exists (
                select from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant = v_first and r.lane = 0);
            -- Other claims are taking from this tenant: as in `take_turns`.
            v_tries := v_tries + 1;
            perform headrace.wait_for(p_queue, p_priority, v_first, 0);
            v_round := 0; v_after := at_tenant; v_wrapped := at_tenant is null;
            continue ring;
        end if;
        -- These tenants had less than their turns. The next round has more tenants, with turns of about what was found.
        v_unit := least(v_unit, greatest(1, (got + v_met - 1) / greatest(v_met, 1)));
        v_most := least(500, greatest(2, v_left / v_unit, case when got = 0 then v_most * 2 end));
    end loop;
    if got = 0 then
        ring_tenant := at_tenant; ring_owed := v_owed;
    end if;
end $$;

-- rows_for: how many ranges of each lane to read for its quota: more than twice as many as last time, or judged by the
-- length of its first range (null: not known).
create or replace function headrace.rows_for(l_quota int4[], l_rows int4[], l_len int4[]) returns int4[] language plpgsql immutable as $$
begin
    -- In a function of this language the statement keeps its plan.
    return (
        select array_agg(case when u.rows > 0 then least(u.quota, u.rows * 4) when u.len is null then least(u.quota, 2) when u.len >= u.quota then 1
            else least(u.quota, (u.quota + u.len - 1) / u.len + 1) end order by u.o)
        from unnest(l_quota, l_rows, l_len) with ordinality u(quota, rows, len, o));
end $$;

-- add_up: how much each of some lanes has given, including what was just taken. n_of is the lane's place.
create or replace function headrace.add_up(l_got int4[], n_of int4[], n_lo int4[], n_hi int4[]) returns int4[] language plpgsql immutable as $$
begin
    for i in 1 .. coalesce(cardinality(n_of), 0) loop
        l_got[n_of[i]] := l_got[n_of[i]] + n_hi[i] - n_lo[i] + 1;
    end loop;
    return l_got;
end $$;
