-- share_turns: what each tenant may take in this pass: its turn, as far as there is room.
--
--   t_open     those that have something; t_weight: how long their turns are, as compared with each other
--   t_got      what they have had of their turn already
--   p_left     wanted in all
--   p_unit     jobs in a turn of weight 1; null: these tenants are all there are, and what is wanted is divided among them
--   p_owed     what the first one is still owed of the turn that the last claim cut short
--
-- Answers the shares, which tenant was the last to get one, and what that is owed of its turn.
create or replace function headrace.share_turns(
    t_open bool[], t_weight int4[], t_got int4[], p_left int4, p_unit int4, p_owed int4,
    out shares int4[], out last int4, out owed int4
) language plpgsql immutable as $$
declare
    v_count int4 := cardinality(t_open);
    v_sum   int4 := 0;
    v_full  int4;
    v_share int4;
    v_unit  int4 := p_unit;
    v_paid  int4 := 0;
    i       int4;
begin
    shares := array_fill(0, array[v_count]);
    for k in 1 .. v_count loop
        if t_open[k] then v_sum := v_sum + t_weight[k]; end if;
    end loop;
    if v_sum = 0 then return; end if;
    if p_owed > 0 and t_open[1] then
        -- From a large claim to small ones: paid in full, or whoever is last on the ring would lose each time; but nobody waits
        -- for more than a hundred jobs.
        v_full := least(p_owed, greatest(100, coalesce(p_unit, (p_left + v_sum - 1) / v_sum) * t_weight[1]));
        v_paid := least(v_full, p_left);
        shares[1] := v_paid; last := 1; owed := v_full - v_paid;
        p_left := p_left - v_paid;
    end if;
    v_unit := coalesce(p_unit, (p_left + v_sum - 1) / v_sum);
    for k in 1 .. v_count loop
        exit when p_left = 0;
        -- Whose turn was just ended comes again after all others; or with the next round, if they are not all there are.
        i := case when v_paid = 0 then k else k % v_count + 1 end;
        continue when not t_open[i];
        v_full := v_unit * t_weight[i] - case when p_unit is null then 0 when i = 1 and v_paid > 0 then v_unit * t_weight[i] else t_got[i] end;
        v_share := least(v_full, p_left);
        continue when v_share <= 0;
        shares[i] := shares[i] + v_share; last := i; owed := v_full - v_share;
        p_left := p_left - v_share;
    end loop;
end $$;
