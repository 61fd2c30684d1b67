-- ended: finished jobs with their end at or after p_since, the earliest first, then by id.
create or replace function headrace.ended(p_since timestamptz, p_limit int4) returns table (
    batch uuid, ord int4, state int2, finished_at timestamptz, queue text, task text, tenant text
) language plpgsql stable rows 100
-- The index by time is a coarse one: it is worth it for a late time only, and what is asked decides.
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select e.batch, e.ord, e.state, e.finished_at, j.queue, j.task, coalesce(j.tenant, '')
    from (select e.batch, e.ord, e.state, e.finished_at from headrace.ending e
        where e.finished_at >= p_since order by e.finished_at, e.batch, e.ord limit p_limit) e
    join headrace.job j on j.batch = e.batch and j.ord = e.ord
    order by e.finished_at, e.batch, e.ord;
end $$;
