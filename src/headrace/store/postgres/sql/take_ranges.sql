-- take_ranges: take up to l_quota jobs from the front of each lane given, in one queue and priority.
--
--   l_seq     from which each lane is read (null: all of them from the beginning)
--   l_rows    how many ranges of each lane are read
--   p_wanted  when this many were taken, `more` is not needed
--   p_alone   nothing was taken before: a suspect that is met first may be taken, and then only it
--
-- Returns what was taken, range by range in the order of the lanes: n_of is the lane's place; n_attempt, n_failures,
-- n_crashes
-- are null when all are 0. `more`: which lanes gave all that they were asked for, so that they may have more. `stop`: a
-- suspect was met.
create or replace function headrace.take_ranges(
    p_queue text, p_priority int2, l_tenant text[], l_lane int8[], l_seq int8[], l_quota int4[], l_rows int4[],
    p_wanted int4, p_alone bool,
    out n_of int4[], out n_tenant text[], out n_batch uuid[], out n_lo int4[], out n_hi int4[],
    out n_attempt int4[], out n_failures int4[], out n_crashes int4[], out got int4, out more int4[], out suspect bool, out stop bool
) language plpgsql as $$
#variable_conflict use_column
declare
    t_tid  tid[];
    t_end  int4[];                                    -- each range's own end; n_hi is the last place taken
    v_past int4;
    v_keep int4;
    x      record;
begin
    -- Ranges are locked in one statement and taken in the next, which sees the locked state, so that none is taken
    -- twice or lost. Ranges that other claims have locked are skipped.
    select array_agg(c.tid), array_agg(c.hi), max(c.past), array_agg(c.o), array_agg(c.tenant),
        array_agg(c.batch), array_agg(c.lo),
        array_agg(least(c.hi, c.lo + c.left - 1)::int4), coalesce(sum(least(c.hi - c.lo + 1, c.left)), 0)
    into t_tid, t_end, v_past, n_of, n_tenant, n_batch, n_lo, n_hi, got
    from (
        select l.o::int4 as o, x.*, l.quota - sum(x.hi - x.lo + 1) over (partition by l.o order by x.seq, x.hi rows unbounded preceding)
            + (x.hi - x.lo + 1) as left
        from unnest(l_tenant, l_lane, l_seq, l_quota, l_rows) with ordinality l(tenant, lane, seq, quota, most, o)
        cross join lateral (
            select r.ctid as tid, r.tenant, r.seq, r.batch, r.lo, r.hi, r.attempt + r.failures + r.crashes + r.suspect::int4 as past
            from headrace.ready r
            where r.queue = p_queue and r.priority = p_priority and r.tenant = l.tenant and r.lane = l.lane and r.seq >= coalesce(l.seq, 0)
            order by r.seq, r.hi limit l.most for update skip locked
        ) x
        where l.quota > 0
    ) c where c.left > 0;
    suspect := false; stop := false;
    if n_of is null then return; end if;
    if v_past > 0 then
        -- Rare: some of them have earlier attempts.
        x := headrace.look_back(t_tid, p_alone);
        n_attempt := x.attempts; n_failures := x.failures; n_crashes := x.crashes; suspect := x.suspect; stop := x.stop;
        if stop then
            v_keep := x.keep;
            t_tid := t_tid[:v_keep]; t_end := t_end[:v_keep]; n_of := n_of[:v_keep]; n_tenant := n_tenant[:v_keep];
            n_batch := n_batch[:v_keep]; n_lo := n_lo[:v_keep]; n_hi := n_hi[:v_keep];
            got := (select coalesce(sum(u.hi - u.lo + 1), 0) from unnest(n_lo, n_hi) u(lo, hi));
        end if;
    end if;
    perform headrace.take_locked(t_tid, t_end, n_hi);
    if got < p_wanted then
        more := array(
            select n.o
            from (select u.o, count(*) as rows, sum(u.hi - u.lo + 1) as took from unnest(n_of, n_lo, n_hi) u(o, lo, hi) group by u.o) n
            where n.rows >= l_rows[n.o] or n.took >= l_quota[n.o] order by 1);
    end if;
end $$;
