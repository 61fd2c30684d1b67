-- take_ranges: take up to l_quota jobs from the front of each lane given, in one queue and priority.
--
--   l_seq     from which on a lane is worth looking at (0: all of it)
--   l_rows    how many ranges of each lane are looked at
--   p_wanted  when so many were taken nobody asks who has more
--   p_alone   nothing was taken before: a suspect that is met first may be taken, and then just it
--
-- Rows are locked in one statement and taken in the next, which sees what was locked: never twice, never lost. What
-- others have locked is passed over. Answers what was taken, range by range in the order of the lanes: n_of is the lane's
-- place; and which lanes gave all that they were asked for, so that they may have more. `stop`: a suspect was met.
create or replace function headrace.take_ranges(
    p_queue text, p_priority int2, l_tenant text[], l_lane int8[], l_seq int8[], l_quota int4[], l_rows int4[],
    p_wanted int4, p_alone bool,
    out n_of int4[], out n_tenant text[], out n_lane int8[], out n_seq int8[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out more int4[], out suspect bool, out stop bool
) language plpgsql as $$
#variable_conflict use_column
declare
    t_tid     tid[];
    t_end     int4[];                                 -- the range's own end; n_hi is the last place taken
    t_suspect bool[];
    v_past    int4;
    v_first   int4;
begin
    with found as materialized (
        select l.o::int4 as o, l.quota, x.*
        from unnest(l_tenant, l_lane, l_seq, l_quota, l_rows) with ordinality l(tenant, lane, seq, quota, most, o)
        cross join lateral (
            select r.ctid as tid, r.tenant, r.lane, r.seq, r.batch, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect
            from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant = l.tenant and r.lane = l.lane and r.seq >= l.seq
            order by r.seq, r.hi
            limit l.most
            for update skip locked
        ) x
        where l.quota > 0
    ), counted as (
        select f.*, f.quota - coalesce(sum(f.hi - f.lo + 1) over (partition by f.o order by f.seq, f.hi
            rows between unbounded preceding and 1 preceding), 0) as left
        from found f
    )
    select array_agg(c.tid), array_agg(c.hi), max(c.attempt + c.failures + c.crashes + c.suspect::int4), array_agg(c.o), array_agg(c.tenant),
        array_agg(c.lane), array_agg(c.seq), array_agg(c.batch), array_agg(c.lo),
        array_agg(least(c.hi, c.lo + c.left - 1)::int4), coalesce(sum(least(c.hi - c.lo + 1, c.left)), 0)
    into t_tid, t_end, v_past, n_of, n_tenant, n_lane, n_seq, n_batch, n_lo, n_hi, got
    from counted c where c.left > 0;
    suspect := false; stop := false;
    if n_of is null then return; end if;

    n_attempt := array_fill(0, array[cardinality(n_of)]); n_failures := n_attempt; n_crashes := n_attempt;
    if v_past > 0 then
        -- Seldom: some of them have a past.
        select array_agg(r.attempt order by u.o), array_agg(r.failures order by u.o), array_agg(r.crashes order by u.o),
            array_agg(r.suspect order by u.o)
        into n_attempt, n_failures, n_crashes, t_suspect
        from unnest(t_tid) with ordinality u(tid, o) join headrace.ready r on r.ctid = u.tid;
    end if;
    if true = any (t_suspect) then
        stop := true;
        v_first := array_position(t_suspect, true);
        suspect := v_first = 1 and p_alone;
        if v_first = 1 and not suspect then
            n_of := null; got := 0;
            return;
        end if;
        v_first := greatest(v_first - 1, 1);
        t_tid := t_tid[:v_first]; t_end := t_end[:v_first]; n_of := n_of[:v_first]; n_tenant := n_tenant[:v_first];
        n_lane := n_lane[:v_first]; n_seq := n_seq[:v_first]; n_batch := n_batch[:v_first]; n_lo := n_lo[:v_first];
        n_hi := n_hi[:v_first]; n_attempt := n_attempt[:v_first]; n_failures := n_failures[:v_first]; n_crashes := n_crashes[:v_first];
        got := (select sum(u.hi - u.lo + 1) from unnest(n_lo, n_hi) u(lo, hi));
    end if;
    if t_end = n_hi then
        delete from headrace.ready r where r.ctid = any (t_tid);
    else
        delete from headrace.ready r
        where r.ctid = any (array(select u.tid from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where u.own = u.taken));
        update headrace.ready r set lo = u.taken + 1
        from unnest(t_tid, t_end, n_hi) u(tid, own, taken) where r.ctid = u.tid and u.own > u.taken;
    end if;
    if got < p_wanted then
        more := array(
            select n.o
            from (select u.o, count(*) as rows, sum(u.hi - u.lo + 1) as took from unnest(n_of, n_lo, n_hi) u(o, lo, hi) group by u.o) n
            where n.rows >= l_rows[n.o] or n.took >= l_quota[n.o] order by 1);
    end if;
end $$;
