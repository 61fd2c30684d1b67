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
    if cardinality(p_positions) = 1 and cardinality(l.r_lo) = 1 and l.gone is null then
        -- The usual call: one step, of a lease whose jobs are neighbours and all run. It needs no aggregate.
        if p_positions[1] not between 0 and l.r_hi[1] - l.r_lo[1] then return p_positions; end if;
        insert into headrace.step (batch, ord, name, number, digest, value, at)
        values (l.r_batch[1], l.r_lo[1] + p_positions[1], p_names[1], p_numbers[1], p_digests[1], p_values[1], p_at[1])
        on conflict do nothing;
        return '{}';
    end if;
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

-- answer_wait: remember the value of a signalled gate as a step of a running job.
--
--   p_value    what stands before the value
--   p_journal  the journal is wanted: it is a part of the answer, and nothing is stored if the job has any step of this name
--
-- Writes and locks nothing if the gate has no value. `held` is false if the position is refused.
create or replace function headrace.answer_wait(
    p_token uuid, p_position int4, p_gate uuid, p_journal bool, p_name text, p_number int4, p_digest bytea, p_value bytea, p_at timestamptz,
    out held bool, out value bytea, out stored bool, out names text[], out numbers int4[], out digests bytea[], out "values" bytea[], out at timestamptz[]
) language plpgsql
set plan_cache_mode = force_generic_plan
as $$
declare
    l       headrace.lease;
    v_batch uuid;
    v_ord   int4;
begin
    stored := false;
    value := (select g.value from headrace.gate g where g.id = p_gate);
    if value is null then
        select * into l from headrace.lease x where x.token = p_token;
    else
        -- As in `add_steps`.
        select * into l from headrace.lease x where x.token = p_token for share;
    end if;
    held := found and case
        when l.gone is null then true when p_position between 0 and length(l.gone) - 1 then get_bit(l.gone, p_position) = 0 else false end;
    if not held then return; end if;
    select r.batch, r.lo + p_position - r.base into v_batch, v_ord from (
        select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
        from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
    ) r where p_position between r.base and r.base + r.hi - r.lo;
    held := found;
    if value is not null and held
        and not (p_journal and exists (select from headrace.step s where s.batch = v_batch and s.ord = v_ord and s.name = p_name))
    then
        insert into headrace.step (batch, ord, name, number, digest, value, at)
        values (v_batch, v_ord, p_name, p_number, p_digest, p_value || value, p_at)
        on conflict do nothing;
        stored := found;
    end if;
    if p_journal then
        select array_agg(s.name order by s.id), array_agg(s.number order by s.id), array_agg(s.digest order by s.id),
            array_agg(s.value order by s.id), array_agg(s.at order by s.id)
        into names, numbers, digests, "values", at
        from headrace.step s where s.batch = v_batch and s.ord = v_ord;
    end if;
end $$;
