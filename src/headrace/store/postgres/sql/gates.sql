-- The rules of `model/gate.py`, and the counts of a gate as they are now.

-- is_gate: whether this is the id of a gate. Otherwise it is the id of a job.
create or replace function headrace.is_gate(p_id uuid) returns bool language sql immutable parallel safe strict as $$
    select substr(p_id::text, 15, 1) = '8'
$$;

-- verdict: what becomes of a job that waits for a gate with these counts: 0 it waits, 1 it is released, 2 it is cancelled.
-- p_needs: 1 done, 2 ended, 3 failed.
create or replace function headrace.verdict(
    p_needs int2, p_size int8, p_done int8, p_dead int8, p_cancelled int8, p_sealed bool
) returns int4 language sql immutable parallel safe as $$
    select case
        when p_needs = 1 then case
            when p_cancelled > 0 then 2
            when p_sealed and p_dead = 0 and p_done = p_size then 1
            else 0 end
        when p_needs = 2 then case when p_sealed and p_done + p_dead + p_cancelled = p_size then 1 else 0 end
        when p_dead > 0 or p_cancelled > 0 then 1
        when p_sealed and p_done = p_size then 2
        else 0 end
$$;

-- verdict_of: the same for a job in this state: 0 not ended, 1 done, 2 dead, 3 cancelled. A job is a gate of one member.
create or replace function headrace.verdict_of(p_needs int2, p_state int2) returns int4 language sql immutable parallel safe as $$
    select headrace.verdict(p_needs, 1, (p_state = 1)::int4, (p_state = 2)::int4, (p_state = 3)::int4, true)
$$;

-- as_member: what a gate with these counts is as a member of another one: 0 open, 1 done, 2 dead, 3 cancelled.
create or replace function headrace.as_member(
    p_size int8, p_done int8, p_dead int8, p_cancelled int8, p_sealed bool
) returns int2 language sql immutable parallel safe as $$
    select case
        when not p_sealed or p_done + p_dead + p_cancelled <> p_size then 0
        when p_dead > 0 then 2
        when p_cancelled > 0 then 3
        else 1 end::int2
$$;

-- gate_now: a gate with its counts as they are now: those of its row, and the tolls that were not folded.
create or replace function headrace.gate_now(p_id uuid) returns table (
    id uuid, queue text, label text, tenant text, sealed bool, signalled bool, value bytea, made_at timestamptz, changed_at timestamptz,
    told int2, size int8, done int8, dead int8, cancelled int8
) language sql stable rows 1 as $$
    select g.id, g.queue, g.label, g.tenant, g.sealed, g.signalled, g.value, g.made_at, g.changed_at, g.told,
        g.size + t.size, g.done + t.done, g.dead + t.dead, g.cancelled + t.cancelled
    from headrace.gate g cross join lateral (
        select coalesce(sum(x.size), 0) as size, coalesce(sum(x.done), 0) as done, coalesce(sum(x.dead), 0) as dead,
            coalesce(sum(x.cancelled), 0) as cancelled
        from headrace.toll x where x.gate = g.id
    ) t where g.id = p_id
$$;

-- signal: end a gate that waits for a signal, and make it if there is none. False: it was signalled before, or takes no signal.
--
--   p_limit   runs of jobs to release
--   p_notes   as in `follow`
--
-- The row is updated, and jobs that wait are released in the same transaction. What suspends itself at this moment holds the key of the
-- row, which an update leaves alone, but no release: then what follows is up to `follow`, which comes after these.
-- Returns whether the gate was signalled, the queues of released jobs, and what is left to `follow`.
create or replace function headrace.signal(
    p_id uuid, p_queue text, p_sealed bool, p_signalled bool, p_label text, p_tenant text, p_value bytea, p_keep interval,
    p_limit int4, p_notes text[], p_now timestamptz default null, out signalled bool, out queues text[], out todo uuid[]
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    f     record;
begin
    insert into headrace.gate (id, made_at, changed_at, size, sealed, signalled, queue, tenant, label)
    values (p_id, v_now, v_now, p_signalled::int4, p_sealed, p_signalled, p_queue, p_tenant, p_label)
    on conflict (id) do nothing;
    update headrace.gate g set value = p_value, done = 1, changed_at = v_now, kept_until = v_now + p_keep
    where g.id = p_id and g.signalled and g.value is null;
    signalled := found;
    if not signalled then return; end if;
    select * into f from headrace.fold_gate(p_id, p_limit, p_notes, v_now, false);
    queues := f.queues; todo := f.todo;
    if f.busy and p_id <> all (coalesce(todo, '{}')) then
        -- Its row is locked. A call that fails in between leaves the toll to `promote`.
        insert into headrace.toll (gate) values (p_id);
        todo := todo || p_id;
    end if;
end $$;
