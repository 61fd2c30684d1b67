-- enqueue_linked: as `enqueue_batch`, for a call that has to do with gates; all or nothing, safe to repeat.
--
--   w_*       null, or by run what its jobs wait for: the id of a gate or of a job, and the need (1 done, 2 ended, 3 failed)
--   g_*       gates to make
--   e_*       members: places lo..hi of a batch, or a gate (its own id as the batch, place 0), and the gate that they count on
--   p_seals   gates that get no members after this call
--
-- Besides what `enqueue_batch` returns: a gate that takes no members, and then nothing was stored; and what `follow` has to look at.
--
-- The keys of the rows of all gates are locked in the order of ids. `follow` waits for these locks, and many calls may hold them.
-- Jobs of other calls are kept where they are (`attach`), in the order of ids.
create or replace function headrace.enqueue_linked(
    p_batch uuid, p_tasks text[], p_payloads bytea[], p_options bytea[],
    s_hi int4[], s_queue text[], s_priority int2[], s_tenant text[], s_lane int8[], s_limits text[],
    s_run_at timestamptz[], s_delay interval[],
    k_ord int4[], k_key text[], k_digest bytea[], k_ttl interval[],
    u_ord int4[], u_name text[], u_states text[], u_within interval[], u_replace bool[], p_now timestamptz,
    w_gate uuid[], w_needs int2[],
    g_id uuid[], g_queue text[], g_sealed bool[], g_signalled bool[], g_label text[], g_tenant text[],
    e_batch uuid[], e_lo int4[], e_hi int4[], e_into uuid[], p_seals uuid[],
    out existing_ord int4[], out existing_id uuid[], out conflict_ord int4, out conflict_id uuid, out over uuid, out follow uuid[]
) language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_known bool;
    v_gates uuid[];                                   -- all gates of the call
    v_made  uuid[];                                   -- those that this call makes
    v_new_batch uuid[]; v_new_lo int4[]; v_new_hi int4[]; v_new_into uuid[];   -- members that were not known
    v_job   uuid[]; v_state int2[];                   -- jobs of other calls, and their states
    v_id    uuid;
begin
    if g_id is null and e_batch is null and p_seals is null and u_ord is null and k_ord is null
        and not exists (select from unnest(w_gate) w where w < p_batch or w > headrace.chain_of(p_batch))
    then
        -- Jobs that wait for others of the same call only, such as those of a chain. All of them are stored.
        perform headrace.enqueue_batch(p_batch, p_tasks, p_payloads, p_options, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at,
            s_delay, null, null, null, null, null, null, null, null, null, p_now, w_gate, w_needs);
        return;
    end if;
    v_known := cardinality(p_payloads) > 0 and exists (select from headrace.job j where j.batch = p_batch);
    if not v_known then
        v_gates := array(select distinct x from unnest(g_id || e_into || p_seals || w_gate || e_batch) x where headrace.is_gate(x) order by x);
        perform from headrace.gate g where g.id = any (v_gates) order by g.id for key share;
        over := headrace.takes_none(e_into, g_id);
        if over is not null then return; end if;
    end if;
    if cardinality(p_payloads) > 0 then
        select b.existing_ord, b.existing_id, b.conflict_ord, b.conflict_id into existing_ord, existing_id, conflict_ord, conflict_id
        from headrace.enqueue_batch(p_batch, p_tasks, p_payloads, p_options, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at,
            s_delay, k_ord, k_key, k_digest, k_ttl, u_ord, u_name, u_states, u_within, u_replace, p_now, w_gate, w_needs) b;
        if v_known or conflict_ord is not null then return; end if;
    end if;

    with made as (
        insert into headrace.gate (id, made_at, changed_at, size, sealed, signalled, queue, tenant, label)
        select n.id, v_now, v_now, n.signalled::int4, n.sealed, n.signalled, n.queue, n.tenant, n.label
        from unnest(g_id, g_queue, g_sealed, g_signalled, g_label, g_tenant) n(id, queue, sealed, signalled, label, tenant) order by n.id
        on conflict (id) do nothing returning id
    )
    select array_agg(m.id) into v_made from made m;
    if cardinality(g_id) > coalesce(cardinality(v_made), 0) then
        -- Another call may have made one meanwhile.
        perform from headrace.gate g where g.id = any (g_id) order by g.id for key share;
        if headrace.takes_none(e_into, null) is not null then
            raise exception 'a gate has ended meanwhile' using errcode = '40001';
        end if;
    end if;

    select m.batch, m.lo, m.hi, m.gate into v_new_batch, v_new_lo, v_new_hi, v_new_into
    from headrace.add_edges(p_batch, e_batch, e_lo, e_hi, e_into, existing_ord) m;
    for v_id in
        select headrace.job_id(e.batch, e.lo) from unnest(v_new_batch, v_new_lo) e(batch, lo) where e.batch <> p_batch and not headrace.is_gate(e.batch)
        union
        select b.gate from headrace.blocked b where b.batch = p_batch and not headrace.is_gate(b.gate) and headrace.id_batch(b.gate) <> p_batch
        order by 1
    loop
        v_job := v_job || v_id; v_state := v_state || coalesce(headrace.attach(v_id), 3::int2);
    end loop;

    with members as (
        select e.target, e.hi - e.lo + 1 as n, case
            when e.batch = p_batch then 0
            when headrace.is_gate(e.batch) then coalesce((select g.told from headrace.gate g where g.id = e.batch), 3)
            else v_state[array_position(v_job, headrace.job_id(e.batch, e.lo))] end as state
        from unnest(v_new_batch, v_new_lo, v_new_hi, v_new_into) e(batch, lo, hi, target)
    ), sums as materialized (
        select m.target, sum(m.n) as size, coalesce(sum(m.n) filter (where m.state = 1), 0) as done,
            coalesce(sum(m.n) filter (where m.state = 2), 0) as dead, coalesce(sum(m.n) filter (where m.state = 3), 0) as cancelled
        from members m group by m.target
    ), own as (
        update headrace.gate g set size = s.size, done = s.done, dead = s.dead, cancelled = s.cancelled
        from sums s where g.id = s.target and g.id = any (v_made)
    ), tolled as (
        insert into headrace.toll (gate, size, done, dead, cancelled)
        select s.target, s.size, s.done, s.dead, s.cancelled from sums s where v_made is null or s.target <> all (v_made) returning gate
    )
    select array_agg(t.gate) into follow from tolled t;
    update headrace.gate g set sealed = true, changed_at = v_now where g.id = any (p_seals) and not g.sealed;
    follow := follow || headrace.mark_open(p_batch, v_gates, v_job, v_state);
end $$;

-- takes_none: a gate among these that takes no members, because it is over, waits for a signal, or does not exist and is not among
-- those that the call makes; null: there is none.
create or replace function headrace.takes_none(p_into uuid[], p_made uuid[]) returns uuid language plpgsql as $$
begin
    return (
        select u.target from unnest(p_into) u(target) left join lateral headrace.gate_now(u.target) n on true
        where case when n.id is null then p_made is null or u.target <> all (p_made)
            else n.signalled or (n.sealed and n.done + n.dead + n.cancelled = n.size) end
        limit 1);
end $$;

-- add_edges: store members that are not known yet, without the places of this batch that were not stored. Returns these.
create or replace function headrace.add_edges(p_batch uuid, e_batch uuid[], e_lo int4[], e_hi int4[], e_into uuid[], p_skip int4[],
    out batch uuid[], out lo int4[], out hi int4[], out gate uuid[]
) language plpgsql as $$
#variable_conflict use_column
begin
    if e_batch is null then return; end if;
    with parts as (
        select e.batch, e.lo, e.hi, e.target from unnest(e_batch, e_lo, e_hi, e_into) e(batch, lo, hi, target)
        where e.batch <> p_batch or p_skip is null
        union all
        select p_batch, min(i.place), max(i.place), i.target from (
            select e.o, e.target, place, place - row_number() over (partition by e.o order by place) as island
            from unnest(e_batch, e_lo, e_hi, e_into) with ordinality e(batch, lo, hi, target, o)
            cross join lateral generate_series(e.lo, e.hi) place
            where e.batch = p_batch and p_skip is not null and place <> all (p_skip)
        ) i group by i.o, i.target, i.island
    ), added as (
        insert into headrace.edge (batch, lo, hi, gate) select p.batch, p.lo, p.hi, p.target from parts p
        on conflict (gate, batch, lo, hi) do nothing returning batch, lo, hi, gate
    )
    select array_agg(a.batch), array_agg(a.lo), array_agg(a.hi), array_agg(a.gate) into batch, lo, hi, gate from added a;
end $$;

-- mark_open: leave a toll for what is decided already: gates that count as something else than other gates were told, and what jobs of
-- this batch wait for. Returns these.
--
--   p_gates           the gates of the call
--   p_jobs, p_states  jobs of other calls, and their states
create or replace function headrace.mark_open(p_batch uuid, p_gates uuid[], p_jobs uuid[], p_states int2[]) returns uuid[]
language plpgsql as $$
declare
    v_ids uuid[];
begin
    with waits as materialized (
        select distinct b.gate, b.needs from headrace.blocked b where b.batch = p_batch
    ), marked as (
        insert into headrace.toll (gate, done)
        select u.id, 0 from unnest(p_gates) u(id) left join lateral headrace.gate_now(u.id) n on true
        where n.told <> headrace.as_member(n.size, n.done, n.dead, n.cancelled, n.sealed)
            or exists (select from waits w where w.gate = u.id
                and (n.id is null or headrace.verdict(w.needs, n.size, n.done, n.dead, n.cancelled, n.sealed) <> 0))
        union all
        select u.id, (u.state = 1)::int4 from unnest(p_jobs, p_states) u(id, state)
        where exists (select from waits w where w.gate = u.id and headrace.verdict_of(w.needs, u.state) <> 0)
        returning gate
    )
    select array_agg(m.gate) into v_ids from marked m;
    return v_ids;
end $$;
