-- lanes: lanes of one queue that have ready jobs, at most p_limit, those after the lane given and then from the first one on.
-- Each count of jobs ends at 10,000.
create or replace function headrace.lanes(
    p_queue text, p_limit int4, a_priority int2 default null, a_tenant text default null, a_lane int8 default null
) returns table (priority int2, tenant text, lane int8, jobs int8, oldest timestamptz) language plpgsql stable rows 100
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_part int4;
    v_left int4 := p_limit;
    v_priority int2 := coalesce(a_priority, 32767);
    v_tenant text := coalesce(a_tenant, '');
    v_lane int8 := coalesce(a_lane, -9223372036854775808);
    x record;
begin
    for v_part in 1 .. case when a_priority is null then 1 else 2 end loop
        for x in
            with recursive walk(priority, tenant, lane, batch, lo, n) as (
                select v_priority, v_tenant collate "C", v_lane, null::uuid, 0, 0
                union all
                select y.priority, y.tenant, y.lane, y.batch, y.lo, w.n + 1
                from walk w cross join lateral (
                    select z.* from (
                        (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                         where r.queue = p_queue and r.priority = w.priority and (r.tenant, r.lane) > (w.tenant, w.lane)
                         order by r.tenant, r.lane, r.seq, r.hi limit 1)
                        union all
                        (select r.priority, r.tenant, r.lane, r.batch, r.lo from headrace.ready r
                         where r.queue = p_queue and r.priority < w.priority
                         order by r.queue, r.priority desc, r.tenant, r.lane, r.seq, r.hi limit 1)
                    ) z limit 1
                ) y where w.n < v_left
            )
            select w.*, c.jobs, j.enqueued_at from walk w
            join headrace.job j on j.batch = w.batch and j.ord = w.lo
            cross join lateral (
                select least(sum(r.hi - r.lo + 1), 10000) as jobs from (
                    select r.lo, r.hi from headrace.ready r
                    where r.queue = p_queue and r.priority = w.priority and r.tenant = w.tenant and r.lane = w.lane
                    order by r.seq, r.hi limit 10000) r
            ) c
            where w.n > 0 order by w.n
        loop
            -- Round again: up to where it began.
            if v_part = 2 and (-x.priority, x.tenant collate "C", x.lane) > (-a_priority, a_tenant, a_lane) then return; end if;
            priority := x.priority; tenant := x.tenant; lane := x.lane; jobs := x.jobs; oldest := x.enqueued_at;
            v_left := v_left - 1;
            return next;
        end loop;
        v_priority := 32767; v_tenant := ''; v_lane := -9223372036854775808;
        if v_left <= 0 then return; end if;
    end loop;
end $$;
