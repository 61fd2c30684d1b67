-- prune_gates: drop gates that are over and that nothing waits for, after their time and that of the gates on which they count; cancel what waits for gates that were not
-- sealed in time, and drop them.
--
--   p_done, p_dead   gates that have not changed since then are dropped: those that are over, and those that were never sealed
--   p_note           of the cancelled jobs
--
-- Gates that are locked, or have tolls, are left for the next call. Returns whether there is more.
create or replace function headrace.prune_gates(p_done timestamptz, p_dead timestamptz, p_limit int4, p_note text, p_now timestamptz default null)
returns bool language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_over uuid[];
    v_late uuid[];
    v_id   uuid;
    j      headrace.job;
    w      record;
    v_n    int4;
    v_left int4 := p_limit;
begin
    v_late := array(
        select g.id from headrace.gate g
        where g.made_at <= p_dead and not g.sealed and g.changed_at <= p_dead
        order by g.made_at limit 100 for update skip locked);
    foreach v_id in array v_late loop
        -- A toll that was not folded is a change.
        continue when exists (select from headrace.toll t where t.gate = v_id and (t.size, t.done, t.dead, t.cancelled) <> (0, 0, 0, 0));
        v_left := v_left - (select c.cancelled from headrace.cancel_waiting(v_id, array[1, 2, 3]::int2[], v_left,
            array[p_note, p_note, p_note], v_now) c);
        exit when v_left <= 0;
        for j in
            select b.* from headrace.blocked s join headrace.job b on b.batch = s.batch and b.ord = s.lo
            where s.gate = v_id and s.attempt > 0 order by s.batch, s.lo limit v_left
        loop
            select * into w from headrace.take_waiting(j, false, false);
            continue when not found;
            insert into headrace.ending (batch, finished_at, ord, state, attempt, failures, crashes, note)
            values (j.batch, v_now, j.ord, 3, w.attempt, nullif(w.failures, 0), nullif(w.crashes, 0), p_note);
            perform headrace.count_end(j.batch, j.ord, 3::int2);
            v_left := v_left - 1;
        end loop;
        if not exists (select from headrace.blocked b where b.gate = v_id) then
            v_over := v_over || v_id;
        end if;
        exit when v_left <= 0;
    end loop;
    v_over := v_over || array(
        select g.id from (
            (select x.id, x.made_at from headrace.gate x
             where x.made_at <= p_done and x.kept_until is null and x.changed_at <= p_done and x.sealed
                and x.done + x.dead + x.cancelled = x.size
             order by x.made_at limit p_limit)
            union all
            (select x.id, x.made_at from headrace.gate x where x.kept_until <= v_now order by x.kept_until limit p_limit)
        ) c join headrace.gate g on g.id = c.id
        where not exists (select from headrace.blocked b where b.gate = g.id) and not exists (select from headrace.toll t where t.gate = g.id)
            and not headrace.needed(g.id, 0, 0)
        limit 1000 for update of g skip locked);
    if v_over is null then return false; end if;
    -- What began to wait, or was counted, before the rows were locked.
    v_over := array(
        select g.id from headrace.gate g where g.id = any (v_over) and not exists (select from headrace.blocked b where b.gate = g.id)
            and (g.id = any (v_late) or (g.sealed and g.done + g.dead + g.cancelled = g.size
                and not exists (select from headrace.toll t where t.gate = g.id))));
    delete from headrace.edge e where e.ctid = any (array(
        select k.ctid from unnest(v_over) x join headrace.edge k on k.gate = x limit p_limit));
    get diagnostics v_n = row_count;
    if v_n >= p_limit then return true; end if;
    delete from headrace.gate g where g.id = any (v_over);
    -- A gate that goes may have kept others.
    return v_left <= 0 or cardinality(v_late) = 100 or cardinality(v_over) > 0;
end $$;
