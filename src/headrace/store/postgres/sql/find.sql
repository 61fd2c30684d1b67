-- find: places of jobs by filter, newest id first. Everything given must hold; null: no matter.
--
--   p_states   null: all, walking the log. Otherwise each kind of state is looked up where it lives: dead letters by
--              their own index, waiting jobs in what waits, running ones in the leases.
--   b_batch, b_ord   only jobs before this id
--   p_text     literal: in the task's name, the note, or a failure's kind or message
create or replace function headrace.find(
    p_states text[], p_queue text, p_task text, p_tenant text, p_since timestamptz, p_until timestamptz, p_text text,
    b_batch uuid, b_ord int4, p_limit int4
) returns table (batch uuid, ord int4) language plpgsql stable rows 50
-- Which indexes help depends on what is asked, and how many are wanted on what comes first.
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_ended int2[] := array(select case s when 'done' then 1 when 'dead' then 2 else 3 end::int2
        from unnest(p_states) s where s in ('done', 'dead', 'cancelled'));
begin
    if p_states is null then
        return query
        select j.batch, j.ord from headrace.job j
        where (j.batch, j.ord) < (b_batch, b_ord)
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task, (
                select n.note from headrace.job_now n where n.batch = j.batch and n.ord = j.ord), p_text))
        order by j.batch desc, j.ord desc limit p_limit;
        return;
    end if;
    return query
    with ended as (
        (select e.batch, e.ord from headrace.ending e join headrace.job j on j.batch = e.batch and j.ord = e.ord
         where e.state <> 1 and e.state = any (v_ended) and (e.batch, e.ord) < (b_batch, b_ord)
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task, e.note, p_text))
         order by e.batch desc, e.ord desc limit p_limit)
        union all
        (select e.batch, e.ord from headrace.ending e join headrace.job j on j.batch = e.batch and j.ord = e.ord
         where 1 = any (v_ended) and e.state = 1 and (e.batch, e.ord) < (b_batch, b_ord)
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task, e.note, p_text))
         order by e.batch desc, e.ord desc limit p_limit)
    ), waiting as (
        select j.batch, j.ord from (
            select r.batch, r.lo, r.hi, r.note from headrace.ready r
            where 'ready' = any (p_states) and r.batch <= b_batch
                and (p_queue is null or r.queue = p_queue) and (p_tenant is null or r.tenant = p_tenant)
            union all
            select s.batch, s.lo, s.hi, s.note from headrace.scheduled s
            where 'scheduled' = any (p_states) and s.batch <= b_batch
                and (p_queue is null or s.queue = p_queue) and (p_tenant is null or s.tenant = p_tenant)
            order by 1 desc, 3 desc
        ) w
        cross join lateral (
            select b.* from headrace.job b where b.batch = w.batch and b.ord between w.lo and w.hi order by b.ord desc
        ) j
        where (j.batch, j.ord) < (b_batch, b_ord)
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task, w.note, p_text))
        limit p_limit
    ), running as (
        select j.batch, j.ord
        from headrace.lease l
        cross join lateral (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality x(batch, lo, hi, o)
        ) u
        join headrace.job j on j.batch = u.batch and j.ord between u.lo and u.hi
        where 'running' = any (p_states) and (p_queue is null or p_queue = any (l.queues))
            and (l.gone is null or get_bit(l.gone, (u.base + j.ord - u.lo)::int4) = 0)
            and (j.batch, j.ord) < (b_batch, b_ord)
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task, null, p_text))
        order by j.batch desc, j.ord desc limit p_limit
    )
    select a.batch, a.ord
    from (select * from ended union all select * from waiting union all select * from running) a
    order by a.batch desc, a.ord desc limit p_limit;
end $$;
