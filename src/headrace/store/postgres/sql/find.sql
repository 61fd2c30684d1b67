-- note_now: the note of a job as it is now.
create or replace function headrace.note_now(j headrace.job) returns text language sql stable as $$
    select coalesce(
        (select e.note from headrace.ending_of(j.batch, j.ord) e),
        (select x.note from headrace.ready x
         where x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
            and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1),
        (select x.note from headrace.scheduled x where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1),
        (select x.note from headrace.blocked x where x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord order by x.hi limit 1))
$$;

-- find_page: places of jobs by filter, newest id first. All given conditions must hold; null: no condition.
--
--   p_states   null: all, by reading the log. Otherwise each kind of state is read where it is stored: dead letters by
--              their own index, waiting jobs in ready, scheduled and blocked, running ones in the leases. With very many ready
--              jobs, the log is read, too, because ready is not in the order of ids.
--   b_batch, b_ord   only jobs before this id
--   p_text     literal: in the task's name, the note, or a failure's kind or message
--
-- Reads about 500 jobs of each kind. If that was not enough for a page, the last row has `shown` false and is the place
-- before which the caller goes on.
create or replace function headrace.find_page(
    p_states text[], p_queue text, p_task text, p_tenant text, p_since timestamptz, p_until timestamptz, p_text text,
    b_batch uuid, b_ord int4, p_limit int4
) returns table (batch uuid, ord int4, shown bool) language plpgsql stable rows 50
-- The best indexes depend on the filter.
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_ended int2[] := array(select case s when 'done' then 1 when 'dead' then 2 else 3 end::int2
        from unnest(p_states) s where s in ('done', 'dead', 'cancelled'));
    v_log   bool := p_states is null or ('ready' = any (p_states) and pg_relation_size('headrace.ready') > 4000000);
    v_look  int4 := greatest(least(p_limit, 2000), case when p_text is not null or (v_log and p_states is not null) then 200 else 500 end);
begin
    return query
    with seen as materialized (
        (select 1 as kind, j.batch, j.ord, null::text as note, null::int2 as state from headrace.job j
         where v_log and (j.batch, j.ord) < (b_batch, b_ord)
         order by j.batch desc, j.ord desc limit v_look)
        union all
        -- What did not end well is never a range.
        (select 2, e.batch, e.ord, e.note, e.state from headrace.ending e
         where not v_log and v_ended <> '{}' and not 1 = any (v_ended) and e.state <> 1 and (e.batch, e.ord) < (b_batch, b_ord)
         order by e.batch desc, e.ord desc limit v_look)
        union all
        (select 3, e.batch, g.ord, e.note, e.state
         from (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.batch desc, x.hi desc) - (x.hi - x.lo + 1) as before
            from (
                select e.batch, e.ord as lo,
                    case when e.batch = b_batch then least(coalesce(e.hi, e.ord), b_ord - 1) else coalesce(e.hi, e.ord) end as hi,
                    e.note, e.state
                from headrace.ending e
                where not v_log and 1 = any (v_ended) and (e.batch, e.ord) < (b_batch, b_ord)
                order by e.batch desc, e.ord desc limit v_look
            ) x
         ) e cross join lateral generate_series(e.hi, greatest(e.lo, e.hi - v_look + 1), -1) g(ord)
         where e.before < v_look order by e.batch desc, g.ord desc limit v_look)
        union all
        (select 4, r.batch, g.ord, r.note, null
         from (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.batch desc, x.hi desc) - (x.hi - x.lo + 1) as before
            from (
                select r.batch, r.lo, case when r.batch = b_batch then least(r.hi, b_ord - 1) else r.hi end as hi, r.note
                from headrace.ready r
                where not v_log and 'ready' = any (p_states) and (r.batch, r.lo) < (b_batch, b_ord)
                order by r.batch desc, r.hi desc limit v_look
            ) x
         ) r cross join lateral generate_series(r.hi, greatest(r.lo, r.hi - v_look + 1), -1) g(ord)
         where r.before < v_look order by r.batch desc, g.ord desc limit v_look)
        union all
        (select 5, s.batch, g.ord, s.note, null
         from (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.batch desc, x.hi desc) - (x.hi - x.lo + 1) as before
            from (
                select s.batch, s.lo, case when s.batch = b_batch then least(s.hi, b_ord - 1) else s.hi end as hi, s.note
                from headrace.scheduled s
                where not v_log and 'scheduled' = any (p_states) and s.batch <= b_batch and (s.batch, s.lo) < (b_batch, b_ord)
                order by s.batch desc, s.hi desc limit v_look
            ) x
         ) s cross join lateral generate_series(s.hi, greatest(s.lo, s.hi - v_look + 1), -1) g(ord)
         where s.before < v_look order by s.batch desc, g.ord desc limit v_look)
        union all
        (select 6, u.batch, g.ord, null, null
         from headrace.lease l
         cross join lateral (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality x(batch, lo, hi, o)
         ) u
         cross join lateral generate_series(u.lo, u.hi) g(ord)
         where not v_log and 'running' = any (p_states) and (u.batch, g.ord) < (b_batch, b_ord)
            and (l.gone is null or get_bit(l.gone, (u.base + g.ord - u.lo)::int4) = 0)
         order by u.batch desc, g.ord desc limit v_look)
        union all
        (select 7, s.batch, g.ord, s.note, null
         from (
            select x.*, sum(x.hi - x.lo + 1) over (order by x.batch desc, x.hi desc) - (x.hi - x.lo + 1) as before
            from (
                -- A suspended job has several rows.
                select distinct on (s.batch, s.hi) s.batch, s.lo,
                    case when s.batch = b_batch then least(s.hi, b_ord - 1) else s.hi end as hi, s.note
                from headrace.blocked s
                where not v_log and 'blocked' = any (p_states) and s.batch <= b_batch and (s.batch, s.lo) < (b_batch, b_ord)
                order by s.batch desc, s.hi desc limit v_look
            ) x
         ) s cross join lateral generate_series(s.hi, greatest(s.lo, s.hi - v_look + 1), -1) g(ord)
         where s.before < v_look order by s.batch desc, g.ord desc limit v_look)
    ), edge as materialized (
        -- If a kind has more, jobs beyond its last place are unknown, so those of other kinds are not shown either.
        select k.batch, k.ord from (
            select distinct on (s.kind) s.batch, s.ord, count(*) over (partition by s.kind) as count
            from seen s order by s.kind, s.batch, s.ord
        ) k where k.count >= v_look order by k.batch desc, k.ord desc limit 1
    ), fit as materialized (
        select s.batch, s.ord from seen s
        -- Each by its key. Without the offset, a planner without statistics may read the whole table.
        cross join lateral (select * from headrace.job b where b.batch = s.batch and b.ord = s.ord offset 0) j
        where not exists (select from edge e where (s.batch, s.ord) < (e.batch, e.ord))
            and headrace.fits(j, p_queue, p_task, p_tenant, p_since, p_until)
            and (p_text is null or headrace.mentions(j.batch, j.ord, j.task,
                case when v_log then headrace.note_now(j) else s.note end, p_text))
            and case
                when v_log then p_states is null or (select n.state from headrace.state_now(j.batch, j.ord) n) = any (p_states)
                when s.kind in (2, 3) then s.state = any (v_ended)
                else true end
        order by s.batch desc, s.ord desc limit p_limit
    )
    select f.batch, f.ord, true from fit f
    union all
    select e.batch, e.ord, false from edge e where (select count(*) from fit) < p_limit;
end $$;
