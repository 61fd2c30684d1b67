-- survey_turns: the best way to take p_quota jobs of one queue and priority, judged by the first ranges (64 at most)
-- from the present turn, of plain lanes only: from p_from, then from the first tenant up to p_wrap (null: no more).
--
--   p_owed   not 0: what the tenant p_from is still owed of its turn
--
-- Returns the tenant whose turn it is (`leader`), the number of ranges (`rows`, 0: nothing waits) and their jobs
-- (`jobs`), whether these are all (`whole`); the
-- jobs in a turn (`unit`); and how many ranges a walk along the index has to read (`stretch`), null if tenants have so
-- many that it is better to go from tenant to tenant.
--
-- A turn is a fiftieth of the wanted jobs, or up to twice that if ranges are longer, so that they are not split. If all
-- ranges were seen, the wanted jobs are divided by the tenants' weights: each gets as many whole turns of one unit as all can
-- have, and what is left goes round once more. If that gives tenants different numbers of turns, `shares` has the jobs of each,
-- to be used as weights (null: `unit` is enough). A tenant that is owed something gets `first`: that, and its share. `last` is the
-- tenant at which the turns stop then, and `rest` what it is still owed (null: where the walk stops). `upto`: the tenant with
-- which the wanted number is complete (null: it was not seen). A walk that ends elsewhere has passed over tenants.
create or replace function headrace.survey_turns(
    p_queue text, p_priority int2, p_quota int4, p_weights jsonb, p_from text, p_wrap text, p_owed int4,
    out rows int4, out jobs int4, out whole bool, out unit int4, out stretch int4, out first int4, out shares jsonb, out last text,
    out rest int4, out leader text, out upto text
) language plpgsql as $$
declare
    v_most   int4 := least(64, greatest(8, p_quota));
    n        int4 := 0;                               -- tenants
    t_name   text[] := '{}';
    t_jobs   int4[] := '{}';
    t_rows   int4[] := '{}';
    t_weight int4[] := '{}';
    t_plan   int4[];                                  -- what each gets, if the wanted jobs are divided among all
    v_last   text;
    v_usual  int4 := 0;                               -- the same, but of no range more than two turns
    v_paid   int4 := 0;                               -- how much of its due the first one gets
    v_left   int4;                                    -- wanted beyond the turns that all get
    v_turn   int4;
    v_more   int4;
    i        int4;
    v_got    int4 := 0;
    v_used   int4 := 0;                               -- ranges that it takes to get them
    v_open   int4;                                    -- the weight of tenants that have more than their turns
    v_alone  bool := false;                           -- there is one tenant only, with more ranges than were seen
    f        record;
begin
    -- A loop, because starting an aggregating statement costs more than 64 rounds.
    rows := 0; jobs := 0; first := p_owed;
    for f in
        select * from (
            select r.tenant, r.hi - r.lo + 1 as len from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant >= p_from and r.lane = 0
            order by r.tenant, r.lane, r.seq, r.hi limit v_most
        ) a
        union all
        select * from (
            select r.tenant, r.hi - r.lo + 1 from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant < p_wrap and r.lane = 0
            order by r.tenant, r.lane, r.seq, r.hi limit v_most
        ) b
        limit v_most
    loop
        if f.tenant is distinct from v_last then
            v_last := f.tenant; n := n + 1; leader := coalesce(leader, v_last);
            if n = 1 and p_owed > 0 and v_last = p_from then v_paid := p_owed; end if;
            t_name[n] := v_last; t_jobs[n] := f.len; t_rows[n] := 1;
            t_weight[n] := case when p_weights is null then 1 else greatest(1, coalesce((p_weights ->> v_last)::int4, 1)) end;
        else
            t_jobs[n] := t_jobs[n] + f.len; t_rows[n] := t_rows[n] + 1;
        end if;
        rows := rows + 1; jobs := jobs + f.len; v_usual := v_usual + least(f.len, p_quota / 25);
    end loop;
    whole := rows < v_most;
    if whole and jobs <= p_quota then
        -- There is nothing to divide. A walk that may read one range more knows that it has come to the end.
        unit := p_quota; first := p_quota; stretch := rows + 1;
        return;
    end if;
    if n = 1 and not whole and rtrim(coalesce(p_wrap, leader), E'\x01') = leader then
        -- The last claim ended with the same tenant. If there is no other one, there are no turns, and a walk takes all that is wanted at once.
        v_alone := not exists (select from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant > leader)
            and not exists (select from headrace.ready r where r.queue = p_queue and r.priority = p_priority and r.tenant < leader);
    end if;
    unit := case when whole or v_alone then p_quota when rows > 0 then greatest(1, p_quota / 50, v_usual / rows) end;
    if whole and n > 1 then
        -- The longest turns that together give no more than the wanted number.
        v_paid := least(v_paid, t_jobs[1], p_quota); t_jobs[1] := t_jobs[1] - v_paid;
        unit := 0; v_open := (select sum(w) from unnest(t_weight) w);
        while (p_quota - v_paid - v_got) / v_open > 0 loop
            unit := unit + (p_quota - v_paid - v_got) / v_open;
            v_got := 0; v_open := 0;
            for i in 1 .. n loop
                v_got := v_got + least(t_jobs[i], unit * t_weight[i]);
                if t_jobs[i] > unit * t_weight[i] then v_open := v_open + t_weight[i]; end if;
            end loop;
        end loop;
        -- What is left goes round once more, as turns of one unit, from the tenant whose turn it is, or after it if it was
        -- owed something. So a round is the same for all tenants, whatever the sizes of the claims that it takes.
        v_left := p_quota - v_paid - v_got; rest := 0;
        for k in 1 .. n loop
            i := case when v_paid = 0 then k when k < n then k + 1 else 1 end;
            v_turn := least(t_jobs[i], unit * t_weight[i]); v_more := least(t_jobs[i] - v_turn, t_weight[i]);
            if v_left > 0 and v_more > 0 then
                last := t_name[i]; rest := greatest(0, v_more - v_left); v_more := v_more - rest; v_left := v_left - v_more;
            else
                v_more := 0;
            end if;
            t_plan[i] := v_turn + v_more;
        end loop;
        t_jobs[1] := t_jobs[1] + v_paid;
        if v_paid > 0 then
            first := p_owed + t_plan[1]; t_plan[1] := t_plan[1] + v_paid;
        end if;
        if unit = 0 then
            -- The walk finds its end by itself, unless the first tenant comes again as the last.
            unit := 1; t_plan := null;
            if v_paid = 0 or last is distinct from t_name[1] then last := null; end if;
        elsif last is null then
            last := case when v_paid > 0 then t_name[1] else t_name[n] end;
        else
            unit := 1; shares := jsonb_object(t_name, t_plan::text[]);
        end if;
    elsif whole or v_alone then
        first := p_quota;
    end if;

    -- The number of ranges of a walk. Six useless ranges cost about as much as a descent.
    v_got := 0; v_used := 0; stretch := 0;
    for i in 1 .. n loop
        v_turn := case when t_plan is not null then t_plan[i]
            else least(t_jobs[i], case when i = 1 and v_paid > 0 then first else unit * t_weight[i] end, p_quota - v_got) end;
        v_got := v_got + v_turn; v_open := (v_turn * t_rows[i] + t_jobs[i] - 1) / t_jobs[i]; v_used := v_used + v_open;
        stretch := stretch + case when v_got < p_quota then t_rows[i] else v_open end;
        if v_got >= p_quota then
            upto := t_name[i];
            exit;
        end if;
    end loop;
    if stretch - v_used > 6 * n then
        stretch := null; shares := null; last := null;
    elsif v_got < p_quota and not whole then
        stretch := least(1000, p_quota * stretch / v_got * case when v_alone then 1 else 1.1 end);
    end if;
end $$;
