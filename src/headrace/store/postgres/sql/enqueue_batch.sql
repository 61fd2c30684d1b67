-- enqueue_batch: store one enqueue call, all or nothing; safe to repeat.
--
--   p_batch               the batch's id, made by the client
--   p_tasks               one name for all jobs, or one per job
--   p_payloads            one per job
--   p_options             null, or one (nullable) per job
--   s_*                   runs of jobs with the same lane and due time: s_hi is the last place of each run, runs
--                         follow each other without gaps. s_limits: keys joined by newline (arrays cannot be ragged)
--   s_run_at, s_delay     when a run is due: a time, or a delay from now; null, null: at once
--   s_queue and s_priority may have one element for all; s_lane, s_limits, s_run_at, s_delay may be null.
--   k_*                   idempotency keys by place
--   u_*                   unique locks by place, see `take_locks`
--   p_now                 the clock, when a test injects one
--   w_*                   null, or by run what its jobs wait for, see `enqueue_linked`
--
-- Returns one row: places whose key was used before, or whose lock another job holds, with that job; or the place of a
-- conflict, and then nothing was stored. No other enqueue waits for its locks, unless it has the same key or lock.
create or replace function headrace.enqueue_batch(
    p_batch uuid, p_tasks text[], p_payloads bytea[], p_options bytea[],
    s_hi int4[], s_queue text[], s_priority int2[], s_tenant text[], s_lane int8[], s_limits text[],
    s_run_at timestamptz[], s_delay interval[],
    k_ord int4[], k_key text[], k_digest bytea[], k_ttl interval[],
    u_ord int4[], u_name text[], u_states text[], u_within interval[], u_replace bool[], p_now timestamptz default null,
    w_gate uuid[] default null, w_needs int2[] default null,
    out existing_ord int4[], out existing_id uuid[], out conflict_ord int4, out conflict_id uuid
) language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_seq  int8;
    v_skip int4[];
    v_n    int4 := cardinality(p_payloads);
    v_run  timestamptz;
    s_lo   int4[];                                    -- where runs do not follow each other
    v_met  record;
begin
    if exists (select from headrace.job j where j.batch = p_batch) then
        -- A repeated call returns the same answer.
        select array_agg(r.ord order by r.ord), array_agg(r.id order by r.ord) into existing_ord, existing_id
        from headrace.refused r where r.batch = p_batch;
        return;
    end if;

    if k_ord is not null then
        select k.existing_ord, k.existing_id, k.conflict_ord, k.conflict_id
        into existing_ord, existing_id, conflict_ord, conflict_id
        from headrace.take_keys(p_batch, p_tasks, k_ord, k_key, k_digest, k_ttl, v_now) k;
        if conflict_ord is not null or cardinality(existing_ord) = v_n then
            return;
        end if;
        v_skip := existing_ord;
    end if;
    if u_ord is not null then
        select * into v_met from headrace.take_locks(p_batch, p_tasks, u_ord, u_name, u_states, u_within, u_replace, v_skip, v_now);
        if k_ord is not null and cardinality(v_met.existing_ord) > 0 then
            -- A key must not point to a job that is not stored.
            delete from headrace.idem i using unnest(k_ord, k_key) u(ord, key)
            where u.ord = any (v_met.existing_ord) and i.task = p_tasks[least(u.ord + 1, cardinality(p_tasks))] and i.key = u.key
                and i.batch = p_batch and i.ord = u.ord;
        end if;
        existing_ord := existing_ord || v_met.existing_ord; existing_id := existing_id || v_met.existing_id;
        v_skip := nullif(existing_ord, '{}');
        if cardinality(v_skip) = v_n then return; end if;
    end if;
    if v_skip is not null then
        insert into headrace.refused (batch, ord, id) select p_batch, u.ord, u.id from unnest(existing_ord, existing_id) u(ord, id);
    end if;

    v_seq := nextval('headrace.call_seq');
    if cardinality(s_hi) = 1 and v_skip is null and w_gate is null then
        v_run := coalesce(s_run_at[1], v_now + s_delay[1]);
        insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload, tenant, lane, limits, options)
        select p_batch, v_seq, v_now, u.o, s_priority[1], s_queue[1],
            case when u.task is null then p_tasks[1] else u.task end, u.payload,
            nullif(s_tenant[1], ''), nullif(s_lane[1], 0), string_to_array(s_limits[1], E'\n'), u.options
        from (
            -- In the list of columns, arrays are taken apart row by row. In the from clause the server would first keep
            -- all rows, those of large payloads in a temporary file.
            select generate_series(0, v_n - 1) as o, unnest(p_payloads) as payload, unnest(p_tasks) as task, unnest(p_options) as options
        ) u;
        if v_run > v_now then
            insert into headrace.scheduled
                (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
            values (v_run, v_seq, coalesce(s_lane[1], 0), p_batch, 0, v_n - 1, s_priority[1], 0, 0, 0, false, s_queue[1], s_tenant[1],
                string_to_array(s_limits[1], E'\n'));
            insert into headrace.tally (scheduled, enqueued, queue) values (v_n, v_n, s_queue[1]);
        else
            insert into headrace.ready
                (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
            values (v_seq, coalesce(s_lane[1], 0), p_batch, 0, v_n - 1, s_priority[1], 0, 0, 0, false, s_queue[1], s_tenant[1],
                string_to_array(s_limits[1], E'\n'));
            insert into headrace.tally (ready, enqueued, queue) values (v_n, v_n, s_queue[1]);
        end if;
        return;
    end if;

    -- As a column of a stored row the array is not copied. From a variable it would be copied for each job.
    with runs as materialized (select s_hi as ends)
    insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload, tenant, lane, limits, options)
    select p_batch, v_seq, v_now, u.o, coalesce(s_priority[u.run], s_priority[1]), coalesce(s_queue[u.run], s_queue[1]),
        coalesce(u.task, p_tasks[1]), u.payload, nullif(s_tenant[u.run], ''), nullif(s_lane[u.run], 0),
        string_to_array(s_limits[u.run], E'\n'), u.options
    from (
        -- The run of a place: the number of runs that end before it, plus one.
        select x.*, width_bucket(x.o - 1, runs.ends) + 1 as run
        from runs cross join (
            select generate_series(0, v_n - 1) as o, unnest(p_payloads) as payload, unnest(p_tasks) as task, unnest(p_options) as options
        ) x offset 0
    ) u
    where v_skip is null or u.o <> all (v_skip);

    if v_skip is not null then
        -- The runs without skipped places.
        with runs as materialized (select s_hi as ends)
        select array_agg(n.lo order by n.lo), array_agg(n.hi order by n.lo), array_agg(coalesce(s_queue[n.run], s_queue[1]) order by n.lo),
            array_agg(coalesce(s_priority[n.run], s_priority[1]) order by n.lo), array_agg(s_tenant[n.run] order by n.lo),
            array_agg(s_lane[n.run] order by n.lo), array_agg(s_limits[n.run] order by n.lo),
            array_agg(s_run_at[n.run] order by n.lo), array_agg(s_delay[n.run] order by n.lo),
            nullif(array_agg(w_gate[n.run] order by n.lo), array_fill(null::uuid, array[count(*)::int4])),
            array_agg(w_needs[n.run] order by n.lo)
        into s_lo, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at, s_delay, w_gate, w_needs
        from (
            select i.run, min(i.ord) as lo, max(i.ord) as hi
            from (select g.run, g.ord, g.ord - row_number() over (partition by g.run order by g.ord) as island
                from (select p as ord, width_bucket(p - 1, runs.ends) + 1 as run from runs cross join generate_series(0, v_n - 1) p) g
                where g.ord <> all (v_skip)) i
            group by i.run, i.island
        ) n;
    end if;
    if w_gate is not null then
        w_gate := headrace.stand_ins(p_batch, w_gate, existing_ord, existing_id);
        insert into headrace.blocked (gate, needs, due_at, delay, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect,
            queue, tenant, limits)
        select u.gate, u.needs, u.due_at, u.delay, v_seq, coalesce(u.lane, 0), p_batch, coalesce(s_lo[u.o], s_hi[u.o - 1] + 1, 0), u.hi,
            coalesce(u.priority, s_priority[1]), 0, 0, 0, false, coalesce(u.queue, s_queue[1]), u.tenant, string_to_array(u.limits, E'\n')
        from unnest(w_gate, w_needs, s_run_at, s_delay, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits)
            with ordinality u(gate, needs, due_at, delay, hi, queue, priority, tenant, lane, limits, o)
        where u.gate is not null;
    end if;
    if s_run_at is not null or s_delay is not null then
        s_run_at := array(select coalesce(u.run_at, v_now + u.delay) from unnest(s_run_at, s_delay) with ordinality u(run_at, delay, o) order by u.o);
        insert into headrace.scheduled
            (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
        select u.run_at, v_seq, coalesce(u.lane, 0), p_batch, coalesce(s_lo[u.o], s_hi[u.o - 1] + 1, 0), u.hi,
            coalesce(u.priority, s_priority[1]), 0, 0, 0, false, coalesce(u.queue, s_queue[1]), u.tenant, string_to_array(u.limits, E'\n')
        from unnest(s_run_at, s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits)
            with ordinality u(run_at, hi, queue, priority, tenant, lane, limits, o)
        where u.run_at > v_now and (w_gate is null or w_gate[u.o] is null);
    end if;
    insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
    select v_seq, coalesce(u.lane, 0), p_batch, coalesce(s_lo[u.o], s_hi[u.o - 1] + 1, 0), u.hi, coalesce(u.priority, s_priority[1]),
        0, 0, 0, false, coalesce(u.queue, s_queue[1]), u.tenant, string_to_array(u.limits, E'\n')
    from unnest(s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at)
        with ordinality u(hi, queue, priority, tenant, lane, limits, run_at, o)
    where (u.run_at is null or u.run_at <= v_now) and (w_gate is null or w_gate[u.o] is null);
    if cardinality(s_queue) = 1 and s_run_at is null and w_gate is null then
        insert into headrace.tally (ready, enqueued, queue) values (v_n, v_n, s_queue[1]);
    else
        insert into headrace.tally (ready, scheduled, blocked, enqueued, queue)
        select coalesce(sum(u.n) filter (where not u.later and not u.waits), 0), coalesce(sum(u.n) filter (where u.later and not u.waits), 0),
            coalesce(sum(u.n) filter (where u.waits), 0), sum(u.n), u.queue
        from (select coalesce(n.queue, s_queue[1]) as queue, coalesce(n.run_at > v_now, false) as later, n.gate is not null as waits,
                n.hi - coalesce(s_lo[n.o], s_hi[n.o - 1] + 1, 0) + 1 as n
            from unnest(s_queue, s_run_at, s_hi, w_gate) with ordinality n(queue, run_at, hi, gate, o)) u
        group by u.queue;
    end if;
end $$;
