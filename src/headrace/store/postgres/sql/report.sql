-- report: write the reports of running tasks, by position of a lease.
--
--   p_positions, p_progress, p_notes    one each; null: as before
--   l_index, l_at, l_text               lines for their logs, by index into p_positions (from 1)
--   p_keep                              this many lines are kept of each job
--
-- Returns the refused positions: settled already, or never held; null: the lease is lost.
create or replace function headrace.report(
    p_token uuid, p_positions int4[], p_progress float8[], p_notes text[], l_index int4[], l_at timestamptz[], l_text text[], p_keep int4
) returns int4[] language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    l         headrace.lease;
    v_refused int4[];
begin
    perform set_config('synchronous_commit', 'off', true);
    -- The lease must not be settled or taken over meanwhile. If another transaction, which may be long, does that now,
    -- the report is written nevertheless, because that transaction may be the worker's own.
    select * into l from headrace.lease where token = p_token for share skip locked;
    if not found then
        select * into l from headrace.lease where token = p_token;
        if not found then return null; end if;
    end if;
    with held as (
        select i.o::int4 as index, i.position, i.progress, i.note, r.batch, (r.lo + i.position - r.base)::int4 as ord
        from unnest(p_positions, p_progress, p_notes) with ordinality i(position, progress, note, o)
        join (
            select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
        ) r on i.position between r.base and r.base + r.hi - r.lo
        where case when l.gone is null then true when i.position between 0 and length(l.gone) - 1 then get_bit(l.gone, i.position) = 0 end
    ), said as (
        insert into headrace.report as s (batch, ord, progress, note, log_at, log_text)
        select h.batch, h.ord, h.progress, h.note, coalesce(n.at, '{}'), coalesce(n.text, '{}')
        from held h
        left join lateral (
            select array_agg(x.at order by x.o) as at, array_agg(x.text order by x.o) as text
            from unnest(l_index, l_at, l_text) with ordinality x(index, at, text, o) where x.index = h.index
        ) n on true
        order by h.batch, h.ord
        on conflict (batch, ord) do update set progress = coalesce(excluded.progress, s.progress), note = coalesce(excluded.note, s.note),
            log_at = (s.log_at || excluded.log_at)[greatest(1, cardinality(s.log_at) + cardinality(excluded.log_at) - p_keep + 1):],
            log_text = (s.log_text || excluded.log_text)[greatest(1, cardinality(s.log_at) + cardinality(excluded.log_at) - p_keep + 1):]
    )
    select array_agg(p) into v_refused from unnest(p_positions) p where p <> all (array(select h.position from held h));
    return coalesce(v_refused, '{}');
end $$;
