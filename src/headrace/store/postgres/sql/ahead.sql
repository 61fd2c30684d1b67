-- ahead: what a waiting job waits behind; no row when it does not wait.
--
-- Each count ends at p_limit: a range holds a job or more, so no more than p_limit of them are looked at, in the order
-- of the index. By the snapshot of the calling statement, so all of it belongs to one moment.
create or replace function headrace.ahead(p_id uuid, p_limit int4) returns table (
    lane int8, higher int8, suspect bool, paused_by text, paused_since timestamptz
) language plpgsql stable rows 1
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    j headrace.job;
    r record;
begin
    select b.* into j from headrace.job b
    where b.batch = headrace.id_batch(p_id) and b.ord = headrace.id_ord(p_id);
    if not found then return; end if;
    select p.by, p.since into paused_by, paused_since from headrace.paused_queue p where p.queue = j.queue;

    select x.lo, x.hi, x.suspect into r from headrace.ready x
    where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
        and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1;
    if found then
        suspect := r.suspect;
        select least(coalesce(sum(n.hi - n.lo + 1), 0) + j.ord - r.lo, p_limit) into lane
        from (select x.lo, x.hi from headrace.ready x
            where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
                and x.lane = coalesce(j.lane, 0) and (x.seq, x.hi) < (j.seq, r.hi)
            order by x.seq, x.hi limit p_limit) n;
        select least(coalesce(sum(n.hi - n.lo + 1), 0), p_limit) into higher
        from (select x.lo, x.hi from headrace.ready x
            where x.queue = j.queue and x.priority > j.priority
            order by x.queue, x.priority desc limit p_limit) n;
        return next;
        return;
    end if;

    select x.suspect into r from headrace.scheduled x
    where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1;
    if found then
        suspect := r.suspect; lane := 0; higher := 0;
        return next;
    end if;
end $$;
