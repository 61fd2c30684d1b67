-- live_queues: those queues of a list that have ready jobs, by one descent of the index for each such queue and none
-- for an empty one. If p_known is given: those that are in it.
--
--   p_list   names, each between two commas: ,a,b,c,
--
-- For claims of many queues: a text is fast to search, while an array of names is parsed at every call. If more queues
-- have jobs than the list has names, the list itself is returned.
create or replace function headrace.live_queues(p_list text, p_known text[]) returns text[] language plpgsql
set enable_hashjoin = on
as $$
declare
    v_most int4 := 64;
begin
    while p_known is null loop
        with recursive walk(queue, n) as (
            (select r.queue, 1 from headrace.ready r order by r.queue limit 1)
            union all
            select y.queue, w.n + 1
            from walk w cross join lateral (
                select r.queue from headrace.ready r where r.queue > w.queue order by r.queue limit 1
            ) y
            where w.n < v_most
        )
        select coalesce(array_agg(w.queue), '{}') into p_known from walk w;
        exit when cardinality(p_known) < v_most;
        if v_most > 64 then
            return string_to_array(trim(p_list, ','), ',');
        end if;
        p_known := null; v_most := greatest(65, length(p_list) - length(replace(p_list, ',', '')));
    end loop;
    if cardinality(p_known) > 256 then
        return array(select k.q from unnest(p_known) k(q) where k.q in (select u.q from unnest(string_to_array(p_list, ',')) u(q)));
    end if;
    return array(select k.q from unnest(p_known) k(q) where position(',' || k.q || ',' in p_list) > 0);
end $$;

-- next_level: the highest priority from p_highest down to p_lowest at which some queues have jobs, as far as known, and
-- these queues.
--
--   h_queues, h_level   the highest level that remembered heads name, and the queues that have heads there (null: none)
--
-- Jobs above it, or at it in other queues, are found by one descent for each queue. So a job of a new priority does not
-- wait for the next search of everything.
create or replace function headrace.next_level(
    p_queues text[], p_highest int2, p_lowest int2, h_queues text[], h_level int2, out level int2, out queues text[]
) language plpgsql as $$
begin
    select array_agg(y.q), max(y.priority) into queues, level
    from (
        select u.q, z.priority, max(z.priority) over () as top
        from unnest(p_queues) u(q) cross join lateral (
            select r.priority from headrace.ready r
            where r.queue = u.q and r.priority <= p_highest
                and r.priority >= coalesce(h_level, p_lowest) + case when u.q = any (h_queues) then 1 else 0 end
            order by r.queue, r.priority desc limit 1
        ) z
    ) y where y.priority = y.top;
    if level is null then
        level := h_level; queues := h_queues;
    elsif level = h_level then
        queues := h_queues || queues;
    end if;
end $$;
