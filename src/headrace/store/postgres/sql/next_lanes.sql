-- next_lanes: up to p_limit lanes of each of some tenants, in order: those after p_after (null: from the first) up to p_bound
-- (null: to the last), and then, where p_upto is given, from the first one up to it.
--
-- Returns rows by place in p_tenants: `of`. `limits`: the lane's keys, joined by newline (arrays cannot be ragged).
create or replace function headrace.next_lanes(
    p_queue text, p_priority int2, p_tenants text[], p_after int8[], p_bound int8[], p_upto int8[], p_limit int4,
    out of int4[], out lanes int8[], out lengths int4[], out limits text[]
) language plpgsql as $$
begin
    select coalesce(array_agg(t.o::int4), '{}'), coalesce(array_agg(x.lane), '{}'),
        coalesce(array_agg(x.len), '{}'), coalesce(array_agg(array_to_string(x.limits, E'\n')), '{}')
    into of, lanes, lengths, limits
    from unnest(p_tenants, p_after, p_bound, p_upto) with ordinality t(tenant, after, bound, upto, o)
    cross join lateral (
        select w.* from (values (coalesce(t.after, -9223372036854775808), t.bound, 1), (-9223372036854775808, t.upto, 2)) part(after, upto, nth)
        cross join lateral (
            with recursive walk(lane, len, limits, n) as (
                (select r.lane, r.hi - r.lo + 1, r.limits, 1 from headrace.ready r
                 where r.queue = p_queue and r.priority = p_priority and r.tenant = t.tenant and r.lane > part.after
                 order by r.lane, r.seq, r.hi limit 1)
                union all
                select y.lane, y.len, y.limits, w.n + 1
                from walk w cross join lateral (
                    select r.lane, r.hi - r.lo + 1 as len, r.limits from headrace.ready r
                    where r.queue = p_queue and r.priority = p_priority and r.tenant = t.tenant and r.lane > w.lane
                    order by r.lane, r.seq, r.hi limit 1
                ) y
                where w.n < p_limit and (part.upto is null or w.lane < part.upto)
            )
            select * from walk
        ) w
        where (part.nth = 1 or t.upto is not null) and (part.upto is null or w.lane <= part.upto)
        limit p_limit
    ) x;
end $$;

-- more_lanes: go on over the lanes of some tenants of a round, at most p_limit of each.
--
--   t_some            places of the tenants to read
--   t_after, t_bound, t_upto   the position in the lanes of each tenant, as in `next_lanes`
--
-- Returns the lanes (l_of: the tenant's place), how many each tenant had (t_found), and the new positions.
create or replace function headrace.more_lanes(
    p_queue text, p_priority int2, t_name text[], t_some int4[], p_limit int4, inout t_after int8[], inout t_bound int8[], inout t_upto int8[],
    out t_found int4[], out l_of int4[], out l_tenant text[], out l_lane int8[], out l_len int4[], out l_limits text[]
) language plpgsql as $$
#variable_conflict use_variable
declare
    x record;
    t int4;
begin
    x := headrace.next_lanes(p_queue, p_priority,
        array(select t_name[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
        array(select t_after[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
        array(select t_bound[i] from unnest(t_some) with ordinality u(i, o) order by u.o),
        array(select t_upto[i] from unnest(t_some) with ordinality u(i, o) order by u.o), p_limit);
    l_of := x.of; l_lane := x.lanes; l_len := x.lengths; l_limits := x.limits;
    t_found := array_fill(0, array[cardinality(t_name)]); l_tenant := '{}';
    for i in 1 .. cardinality(l_of) loop
        t := t_some[l_of[i]];
        l_of[i] := t; l_tenant := l_tenant || t_name[t]; t_found[t] := t_found[t] + 1;
        if t_upto[t] is not null and l_lane[i] <= t_upto[t] then
            -- Begin again at the first lane, up to where the walk began.
            t_bound[t] := t_upto[t]; t_upto[t] := null;
        end if;
        t_after[t] := l_lane[i];
    end loop;
end $$;
