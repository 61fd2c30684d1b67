-- ended_jobs: up to p_limit finished jobs that ended in a span of time after the job given, the earliest first, then by id.
-- Ranges that ended at one moment do not overlap, so their order is that of their jobs.
create or replace function headrace.ended_jobs(
    p_from timestamptz, p_to timestamptz, p_limit int4, a_batch uuid default null, a_ord int4 default null
) returns table (
    batch uuid, ord int4, state int2, finished_at timestamptz, queue text, task text, tenant text
) language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select e.batch, j.ord, e.state, e.finished_at, j.queue, j.task, coalesce(j.tenant, '')
    from (
        select r.*, (sum(r.hi - r.lo + 1) over (order by r.finished_at, r.batch, r.lo) - (r.hi - r.lo + 1))::int4 as before
        from (
            select e.batch, e.state, e.finished_at, coalesce(e.hi, e.ord) as hi,
                case when e.finished_at = p_from and e.batch = a_batch then greatest(e.ord, a_ord + 1) else e.ord end as lo
            from headrace.ending e
            where e.finished_at >= p_from and e.finished_at < p_to
                and (a_batch is null or e.finished_at > p_from or (e.batch, coalesce(e.hi, e.ord)) > (a_batch, a_ord))
            order by e.finished_at, e.batch, e.ord limit p_limit
        ) r
    ) e
    join headrace.job j on j.batch = e.batch and j.ord >= e.lo and j.ord <= least(e.hi, e.lo + p_limit - e.before - 1)
    where e.before < p_limit
    order by e.finished_at, e.batch, j.ord;
end $$;

-- ended_span: the same; one row without a job if the span has more than p_many ranges, so that the caller asks for a shorter
-- one. The index by time is coarse, and its results must be sorted. No statement sorts more than p_many, unless they ended at
-- the same moment.
create or replace function headrace.ended_span(
    p_from timestamptz, p_to timestamptz, p_many int4, p_limit int4, a_batch uuid default null, a_ord int4 default null
) returns table (
    batch uuid, ord int4, state int2, finished_at timestamptz, queue text, task text, tenant text
) language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    if p_to > p_from + interval '1 microsecond' and p_many < (
        select count(*) from (select from headrace.ending e
            where e.finished_at >= p_from and e.finished_at < p_to limit p_many + 1) n)
    then
        return next;
        return;
    end if;
    return query select * from headrace.ended_jobs(p_from, p_to, p_limit, a_batch, a_ord);
end $$;

-- ended: finished jobs with their end at or after p_since, the earliest first, then by id; for clients of an earlier version.
--
-- A span of time with more than 100,000 ranges is divided until it has fewer. The cost does not depend on how long ago
-- p_since is.
create or replace function headrace.ended(p_since timestamptz, p_limit int4) returns table (
    batch uuid, ord int4, state int2, finished_at timestamptz, queue text, task text, tenant text
) language plpgsql stable rows 100
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_many  constant int4 := greatest(100000, p_limit);
    v_from  timestamptz := p_since;
    v_width interval := greatest(clock_timestamp() - p_since, interval '1 second');
    v_to    timestamptz := 'infinity';
    v_left  int4 := p_limit;
    v_count int4;
begin
    while v_left > 0 loop
        select count(*) into v_count from (select from headrace.ending e
            where e.finished_at >= v_from and e.finished_at < v_to limit v_many + 1) n;
        if v_count > v_many and v_width > interval '1 microsecond' then
            v_width := greatest(v_width / 32, interval '1 microsecond');
            v_to := v_from + v_width;
            continue;
        end if;
        return query select * from headrace.ended_jobs(v_from, v_to, v_left);
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
        exit when v_to = 'infinity';
        v_from := v_to;
        -- Later spans may have fewer endings. Times in the future exist only with a clock that a test sets.
        v_width := v_width * 4;
        v_to := case when v_from + v_width > clock_timestamp() then 'infinity' else v_from + v_width end;
    end loop;
end $$;
