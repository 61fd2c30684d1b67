-- split_limit: a limit key of a lane as (the limit's name, the key that has the units, how many a job needs). As in
-- lane.py:
-- shop@3:acme is three units of shop:acme. Units that are not 1 to 1,000,000 count as 1: a claim must not fail on a stored
-- text. Inlined by the planner, as the next one.
create or replace function headrace.split_limit(p_text text) returns table (name text, key text, cost int4)
language sql immutable rows 1 as $$
    select split_part(h.head, '@', 1), split_part(h.head, '@', 1) || substr(p_text, length(h.head) + 1),
        case when strpos(h.head, '@') = 0 then 1
            when substr(h.head, strpos(h.head, '@') + 1) ~ '^([1-9][0-9]{0,5}|1000000)$' then split_part(h.head, '@', 2)::int4
            else 1 end
    from (select split_part(p_text, ':', 1) as head) h
$$;

-- limit_now: the rule for a key and what is free right now. No row: no limit.
--
--   free       units that a claim may take
--   held       units held, if the rule has a concurrency or was closed
--   units      units in the bucket, if it has a rate
--   opens_at   when p_cost units are available, or the limit opens; null: time does not matter; infinity: never
--   one        half open: one job at a time, whatever it costs
--
-- A bucket that was drawn from more than 10 s after now counts as full, because the clock was set back.
create or replace function headrace.limit_now(p_name text, p_key text, p_cost int4, p_now timestamptz) returns table (
    concurrency int4, rate float8, burst float8, free float8, held int8, units float8, opens_at timestamptz, closed bool, one bool
) language sql stable rows 1 as $$
    select r.concurrency, r.rate, r.burst,
        case when n.closed or (r.closed_until is not null and n.held > 0) then 0 else least(coalesce(r.concurrency - n.held, 'infinity'::float8), coalesce(n.units, 'infinity'::float8)) end,
        n.held, n.units,
        case when n.closed then r.closed_until
            when n.units + 1e-6 >= p_cost then null
            when r.rate > 0 and p_cost <= r.burst then p_now + make_interval(secs => (p_cost - n.units) / r.rate)
            when r.rate is not null then 'infinity' end,
        n.closed, r.closed_until is not null
    from (select x.* from headrace.limit_rule x where x.name = p_key
        union all
        select x.* from headrace.limit_rule x where x.name = p_name and p_name <> p_key limit 1) r
    cross join lateral (
        select coalesce(r.closed_until > p_now, false) as closed,
            case when r.concurrency is not null or r.closed_until is not null
                then (select coalesce(sum(h.units), 0) from headrace.hold h where h.key = p_key) else 0 end as held,
            case when r.rate is not null then coalesce((
                select case when b.at > p_now + interval '10 seconds' then r.burst
                    else least(r.burst, b.units + r.rate * greatest(0, extract(epoch from p_now - b.at)::float8)) end
                from headrace.bucket b where b.key = p_key), r.burst) end as units
    ) n
$$;

-- count_units: how much could be taken from each of some lanes alone, by what its limit keys leave.
--
--   l_limits   the lanes' keys, joined by newline (null: none)
--   p_block    wait for other claims that count the same keys; false: treat the lanes of those keys as closed. True
--              only for a claim that holds no key and no range yet
--
-- Claims that count the same key run one after the other: a claim holds the key's lock until it has committed. The
-- locks are taken in one statement, in one order, and the units counted in the next, which sees what the last holder
-- did. Their number is bounded, because a server has little memory for locks.
-- Returns each lane's l_cap; one k_* per lane and key that has a rule, f_free and f_one by key, for `share_units`; when
-- the first lane
-- that is closed now opens by itself; whether locks were taken; a lock that another claim has (`busy`), for which lanes
-- were treated as closed.
create or replace function headrace.count_units(
    l_limits text[], p_block bool, p_now timestamptz,
    out l_cap int4[], out k_lane int4[], out k_key int4[], out k_cost int4[], out f_free float8[], out f_one bool[],
    out opens timestamptz, out locked bool, out busy int4
) language plpgsql as $$
declare
    f_key text[]; f_cost int4[]; f_opens timestamptz[];
    l_opens timestamptz[];
    v_got   int4[];
    v_cap   int4;
    j       int4;
begin
    locked := false;
    l_cap := array_fill(1000000, array[cardinality(l_limits)]);
    with part as materialized (
        select l.o::int4 as lane, s.key, s.name, s.cost
        from unnest(l_limits) with ordinality l(limits, o)
        cross join lateral unnest(string_to_array(l.limits, E'\n')) k(text)
        cross join lateral headrace.split_limit(k.text) s
        where exists (select from headrace.limit_rule r where r.name = s.key or r.name = s.name)
    ), placed as (
        select p.*, (dense_rank() over (order by p.key))::int4 as n from part p
    )
    select array_agg(p.lane order by p.lane), array_agg(p.n order by p.lane), array_agg(p.cost order by p.lane),
        array_agg(distinct p.key order by p.key)
    into k_lane, k_key, k_cost, f_key
    from placed p;
    if f_key is null then return; end if;
    f_cost := array_fill(1, array[cardinality(f_key)]);
    for i in 1 .. cardinality(k_key) loop
        f_cost[k_key[i]] := greatest(f_cost[k_key[i]], k_cost[i]);
    end loop;

    locked := true;
    if p_block then
        perform pg_advisory_xact_lock(1214538831, s.n)
        from (select distinct hashtext(k) & 127 as n from unnest(f_key) k order by 1) s;
    else
        v_got := array(select s.n from (select distinct hashtext(k) & 127 as n from unnest(f_key) k order by 1) s
            where pg_try_advisory_xact_lock(1214538831, s.n));
        busy := (select hashtext(k) & 127 from unnest(f_key) k where hashtext(k) & 127 <> all (v_got) limit 1);
    end if;
    select array_agg(case when v_got is null or hashtext(k.key) & 127 = any (v_got) then n.free else 0 end order by k.o),
        array_agg(n.opens_at order by k.o), array_agg(n.one order by k.o)
    into f_free, f_opens, f_one
    from unnest(f_key, f_cost) with ordinality k(key, cost, o)
    left join lateral headrace.limit_now(split_part(k.key, ':', 1), k.key, k.cost, p_now) n on true;

    l_opens := array_fill(null::timestamptz, array[cardinality(l_limits)]);
    for i in 1 .. cardinality(k_lane) loop
        j := k_lane[i];
        v_cap := case when f_free[k_key[i]] = 'infinity' then 1000000 else greatest(0, floor(f_free[k_key[i]] / k_cost[i] + 1e-6)) end;
        if f_one[k_key[i]] then v_cap := least(v_cap, 1); end if;
        if v_cap = 0 then
            -- If time does not open one of the keys, it does not open the lane.
            l_opens[j] := greatest(l_opens[j], coalesce(f_opens[k_key[i]], 'infinity'));
        end if;
        l_cap[j] := least(l_cap[j], v_cap);
    end loop;
    opens := (select min(o) from unnest(l_opens) o where o < 'infinity');
end $$;

-- share_units: how many jobs to take from each lane: its tenant's share, split over the tenant's lanes that are open, in their
-- order, as far as all of a lane's keys leave it. Lanes and keys as `count_units` gives them; l_of: the tenant's place.
create or replace function headrace.share_units(
    l_of int4[], l_cap int4[], t_share int4[], k_lane int4[], k_key int4[], k_cost int4[], f_free float8[], f_one bool[]
) returns int4[] language plpgsql immutable as $$
declare
    l_quota int4[] := '{}';
    t_open  int4[] := array_fill(0, array[cardinality(t_share)]);
    v_give  int4;
    t       int4;
    j       int4 := 1;                                -- runs over the lanes' keys
    v_keys  int4 := coalesce(cardinality(k_lane), 0);
begin
    for i in 1 .. cardinality(l_of) loop
        if l_cap[i] > 0 then t_open[l_of[i]] := t_open[l_of[i]] + 1; end if;
    end loop;
    for i in 1 .. cardinality(l_of) loop
        t := l_of[i]; v_give := 0;
        if l_cap[i] > 0 then
            v_give := least((t_share[t] + t_open[t] - 1) / t_open[t], l_cap[i]);
            t_open[t] := t_open[t] - 1;
        end if;
        for h in j .. v_keys loop
            exit when k_lane[h] > i;
            v_give := least(v_give, greatest(0, floor(least(f_free[k_key[h]], 1e9) / k_cost[h] + 1e-6)));
        end loop;
        while j <= v_keys and k_lane[j] = i loop
            f_free[k_key[j]] := case when f_one[k_key[j]] and v_give > 0 then 0 else f_free[k_key[j]] - v_give * k_cost[j] end;
            j := j + 1;
        end loop;
        t_share[t] := t_share[t] - v_give;
        l_quota := l_quota || v_give;
    end loop;
    return l_quota;
end $$;

-- hold_units: record what a claim took from limited lanes: the units of its lease, and what is left in their buckets.
create or replace function headrace.hold_units(p_token uuid, l_limits text[], l_took int4[], p_now timestamptz) returns void
language plpgsql as $$
begin
    with used as materialized (
        select s.key, min(s.name) as name, least(sum(s.cost::int8 * l.took), 2147483647)::int4 as units
        from unnest(l_limits, l_took) l(limits, took)
        cross join lateral unnest(string_to_array(l.limits, E'\n')) k(text)
        cross join lateral headrace.split_limit(k.text) s
        where l.took > 0 group by s.key
    ), held as (
        insert into headrace.hold as h (token, units, key) select p_token, u.units, u.key from used u
        on conflict (key, token) do update set units = least(h.units::int8 + excluded.units, 2147483647)::int4
    )
    insert into headrace.bucket as b (key, units, at)
    select u.key, n.units - u.units, p_now
    from used u cross join lateral headrace.limit_now(u.name, u.key, 1, p_now) n
    where n.rate is not null and exists (select from headrace.limit_rule r where r.rate is not null)
    on conflict (key) do update set units = excluded.units,
        at = case when b.at > p_now + interval '10 seconds' then excluded.at else greatest(b.at, excluded.at) end;
end $$;
