-- share_turns: how much each tenant may take in this pass: its turn, as far as jobs are wanted.
--
--   t_open     those that have jobs; t_weight: the relative length of their turns
--   t_got      jobs of their turn that they have had already
--   p_left     wanted in all
--   p_unit     jobs in a turn of weight 1; null: these are all tenants, and the wanted jobs are divided among them
--   p_owed     what the first one is still owed of the turn that the last claim cut short
--
-- Returns the shares, the last tenant that got one, and what it is still owed of its turn.
create or replace function headrace.share_turns(
    t_open bool[], t_weight int4[], t_got int4[], p_left int4, p_unit int4, p_owed int4,
    out shares int4[], out last int4, out owed int4
) language plpgsql immutable as $$
declare
    v_sum  int4 := (select sum(t.weight) from unnest(t_open, t_weight) t(open, weight) where t.open);
    v_all  int4 := 0;                                 -- whole turns that each gets
    v_last int4;
    v_full int4;
    v_paid int4 := 0;
begin
    if v_sum is null then
        shares := array_fill(0, array[cardinality(t_open)]);
        return;
    end if;
    if p_owed > 0 and t_open[1] then
        -- After a large claim, small ones give what is owed in full, or the last tenant on the ring would lose each
        -- time. But other tenants wait for at most a hundred jobs.
        v_full := least(p_owed, greatest(100, coalesce(p_unit, (p_left + v_sum - 1) / v_sum) * t_weight[1]));
        v_paid := least(v_full, p_left);
        p_left := p_left - v_paid;
    end if;
    -- Divided among all, each gets as many whole turns of its weight as all can have, and what is left goes round once more. So a
    -- round is the same for all tenants, whatever the sizes of the claims that it takes.
    if p_unit is null then
        v_all := p_left / v_sum; p_left := p_left - v_all * v_sum;
    end if;
    -- The tenant whose turn has just ended comes again after all others, or with the next round if there are more.
    select array_agg(s.share + s.base + case when s.o = 1 then v_paid else 0 end order by s.o),
        (array_agg(s.o order by s.nth desc) filter (where s.share > 0))[1], (array_agg(s.whole - s.share order by s.nth desc) filter (where s.share > 0))[1],
        (array_agg(s.o order by s.nth desc) filter (where s.base > 0))[1]
    into shares, last, owed, v_last
    from (
        select f.*, greatest(0, least(f.whole, p_left - coalesce(sum(f.whole) over (order by f.nth rows between unbounded preceding and 1 preceding), 0)))::int4 as share
        from (
            select t.o::int4, case when t.o = 1 and v_paid > 0 then cardinality(t_open) + 1 else t.o end as nth,
                case when t.open then v_all * t.weight else 0 end as base,
                case when not t.open or (p_unit is not null and t.o = 1 and v_paid > 0) then 0 when p_unit is null then t.weight
                    else greatest(0, p_unit * t.weight - t.got) end as whole
            from unnest(t_open, t_weight, t_got) with ordinality t(open, weight, got, o)
        ) f
    ) s;
    if last is null and v_last is not null then
        -- The round ends where it began.
        last := v_last; owed := 0;
    elsif last is null and v_paid > 0 then
        last := 1; owed := v_full - v_paid;
    end if;
end $$;
