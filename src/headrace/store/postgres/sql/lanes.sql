-- lane_page: lanes of one queue that have ready jobs, those after the lane given, until p_limit lanes were found or p_ranges
-- ranges were counted; the last of them says `more` if there may be others. Each count of jobs ends at 10,000.
create or replace function headrace.lane_page(
    p_queue text, p_limit int4, p_ranges int4, a_priority int2 default null, a_tenant text default null, a_lane int8 default null
) returns table (priority int2, tenant text, lane int8, jobs int8, oldest timestamptz, more bool) language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_found int4 := 0;
    v_counted int4 := 0;
    v_batch uuid;
    v_lo int4;
    v_ranges int4;
begin
    priority := coalesce(a_priority, 32767);
    tenant := coalesce(a_tenant, '');
    lane := coalesce(a_lane, -9223372036854775808);
    loop
        select z.priority, z.tenant, z.lane, z.batch, z.lo into priority, tenant, lane, v_batch, v_lo from (
            (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
             where r.queue = p_queue and r.priority = lane_page.priority
                 and (r.tenant, r.lane) > (lane_page.tenant collate "C", lane_page.lane)
             order by r.tenant, r.lane, r.seq, r.hi limit 1)
            union all
            (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
             where r.queue = p_queue and r.priority < lane_page.priority
             order by r.queue, r.priority desc, r.tenant, r.lane, r.seq, r.hi limit 1)
        ) z limit 1;
        if not found then return; end if;
        select count(*), least(sum(n.hi - n.lo + 1), 10000) into v_ranges, jobs from (
            select r.lo, r.hi from headrace.ready r
            where r.queue = p_queue and r.priority = lane_page.priority and r.tenant = lane_page.tenant collate "C"
                and r.lane = lane_page.lane
            order by r.seq, r.hi limit 10000) n;
        select j.enqueued_at into oldest from headrace.job j where j.batch = v_batch and j.ord = v_lo;
        v_found := v_found + 1;
        v_counted := v_counted + v_ranges;
        more := v_found >= p_limit or v_counted >= p_ranges;
        return next;
        if more then return; end if;
    end loop;
end $$;

-- lanes: for clients of an earlier version. They begin again after a short page.
create or replace function headrace.lanes(
    p_queue text, p_limit int4, a_priority int2 default null, a_tenant text default null, a_lane int8 default null
) returns table (priority int2, tenant text, lane int8, jobs int8, oldest timestamptz) language sql stable as $$
    select l.priority, l.tenant, l.lane, l.jobs, l.oldest
    from headrace.lane_page(p_queue, p_limit, 2147483647, a_priority, a_tenant, a_lane) l
$$;
