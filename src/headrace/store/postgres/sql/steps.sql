-- add_steps: write finished steps of running tasks by position of a lease, durably. The first of a name and number stays.
--
-- Returns the refused positions: settled already, or never held; null: the lease is lost.
create or replace function headrace.add_steps(
    p_token uuid, p_positions int4[], p_names text[], p_numbers int4[], p_digests bytea[], p_values bytea[], p_at timestamptz[]
) returns int4[] language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    l         headrace.lease;
    v_refused int4[];
begin
    -- A settlement or a takeover of the lease waits until the steps are stored, or they wait for it.
    select * into l from headrace.lease where token = p_token for share;
    if not found then return null; end if;
    with held as (
        select i.*, r.batch, (r.lo + i.position - r.base)::int4 as ord
        from unnest(p_positions, p_names, p_numbers, p_digests, p_values, p_at)
            with ordinality i(position, name, number, digest, value, at, o)
        join (
            select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
        ) r on i.position between r.base and r.base + r.hi - r.lo
        where case when l.gone is null then true when i.position between 0 and length(l.gone) - 1 then get_bit(l.gone, i.position) = 0 end
    ), stored as (
        insert into headrace.step (batch, ord, name, number, digest, value, at)
        select h.batch, h.ord, h.name, h.number, h.digest, h.value, h.at from held h order by h.o
        on conflict do nothing
    )
    select array_agg(distinct p) into v_refused from unnest(p_positions) p where p <> all (array(select h.position from held h));
    return coalesce(v_refused, '{}');
end $$;
