-- enqueue_batch: store one enqueue call, all or nothing; safe to repeat.
--
--   p_batch               the batch's id, made by the client
--   p_tasks               one name for all jobs, or one per job
--   p_payloads            one per job
--   p_options             null, or one (nullable) per job
--   s_*                   runs of jobs with the same lane and due time: s_hi is the last place of each run, runs
--                         follow each other without gaps. s_limits: keys joined by newline (arrays cannot be ragged)
--   s_run_at, s_delay     when a run is due: a time, or so long from now; null, null: at once
--   k_*                   idempotency keys by place
--   p_now                 the clock, when a test injects one
--
-- Answers one row: places whose key had already made a job, with that job; or the place of a conflict, and then
-- nothing was stored. Locks nothing that another enqueue without the same key would wait for.
create or replace function headrace.enqueue_batch(
    p_batch uuid, p_tasks text[], p_payloads bytea[], p_options bytea[],
    s_hi int4[], s_queue text[], s_priority int2[], s_tenant text[], s_lane int8[], s_limits text[],
    s_run_at timestamptz[], s_delay interval[],
    k_ord int4[], k_key text[], k_digest bytea[], k_ttl interval[], p_now timestamptz default null,
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
begin
    if exists (select from headrace.job j where j.batch = p_batch) then
        -- Said before: answer as before. What this batch did not store its keys had already made.
        select array_agg(u.ord order by u.ord), array_agg(headrace.job_id(i.batch, i.ord) order by u.ord)
        into existing_ord, existing_id
        from unnest(k_ord, k_key) u(ord, key)
        join headrace.idem i on i.task = p_tasks[least(u.ord + 1, cardinality(p_tasks))] and i.key = u.key
        where not exists (select from headrace.job j where j.batch = p_batch and j.ord = u.ord);
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

    v_seq := nextval('headrace.call_seq');
    if cardinality(s_hi) = 1 and v_skip is null then
        v_run := coalesce(s_run_at[1], v_now + s_delay[1]);
        insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload, tenant, lane, limits, options)
        select p_batch, v_seq, v_now, u.o - 1, s_priority[1], s_queue[1],
            case when u.task is null then p_tasks[1] else u.task end, u.payload,
            nullif(s_tenant[1], ''), nullif(s_lane[1], 0), string_to_array(s_limits[1], E'\n'), u.options
        from unnest(p_payloads, p_tasks, p_options) with ordinality u(payload, task, options, o);
        if v_run > v_now then
            insert into headrace.scheduled
                (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)
            values (v_run, v_seq, s_lane[1], p_batch, 0, v_n - 1, s_priority[1], 0, 0, 0, false, s_queue[1], s_tenant[1]);
            insert into headrace.tally (scheduled, enqueued, queue) values (v_n, v_n, s_queue[1]);
        else
            insert into headrace.ready
                (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)
            values (v_seq, s_lane[1], p_batch, 0, v_n - 1, s_priority[1], 0, 0, 0, false, s_queue[1], s_tenant[1]);
            insert into headrace.tally (ready, enqueued, queue) values (v_n, v_n, s_queue[1]);
        end if;
        return;
    end if;

    with run as materialized (
        select s.o, coalesce(s_hi[s.o - 1], -1) + 1 as lo, s.hi, s.queue, s.priority, s.tenant, s.lane, s.limits,
            coalesce(s.run_at, v_now + s.delay) as run_at
        from unnest(s_hi, s_queue, s_priority, s_tenant, s_lane, s_limits, s_run_at, s_delay)
            with ordinality s(hi, queue, priority, tenant, lane, limits, run_at, delay, o)
    ), place as materialized (
        select run.*, g.ord
        from run cross join lateral generate_series(run.lo, run.hi) g(ord)
        where v_skip is null or g.ord <> all (v_skip)
    ), log as (
        insert into headrace.job (batch, seq, enqueued_at, ord, priority, queue, task, payload, tenant, lane, limits, options)
        select p_batch, v_seq, v_now, p.ord, p.priority, p.queue,
            case when u.task is null then p_tasks[1] else u.task end, u.payload,
            nullif(p.tenant, ''), nullif(p.lane, 0), string_to_array(p.limits, E'\n'), u.options
        from place p
        join unnest(p_payloads, p_tasks, p_options) with ordinality u(payload, task, options, o) on u.o = p.ord + 1
    ), piece as materialized (
        -- A run without the places that were skipped: gaps and islands.
        select i.o, min(i.ord) as lo, max(i.ord) as hi
        from (select p.o, p.ord, p.ord - row_number() over (partition by p.o order by p.ord) as island from place p) i
        group by i.o, i.island
    ), waiting as materialized (
        select piece.lo, piece.hi, run.queue, run.priority, run.tenant, run.lane, run.run_at
        from piece join run on run.o = piece.o
    ), now_ready as (
        insert into headrace.ready
            (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)
        select v_seq, w.lane, p_batch, w.lo, w.hi, w.priority, 0, 0, 0, false, w.queue, w.tenant
        from waiting w where w.run_at is null or w.run_at <= v_now
        order by w.queue, w.priority desc, w.tenant, w.lane, w.lo
    ), put_off as (
        insert into headrace.scheduled
            (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant)
        select w.run_at, v_seq, w.lane, p_batch, w.lo, w.hi, w.priority, 0, 0, 0, false, w.queue, w.tenant
        from waiting w where w.run_at > v_now
    )
    insert into headrace.tally (ready, scheduled, enqueued, queue)
    select coalesce(sum(w.hi - w.lo + 1) filter (where w.run_at is null or w.run_at <= v_now), 0),
        coalesce(sum(w.hi - w.lo + 1) filter (where w.run_at > v_now), 0),
        sum(w.hi - w.lo + 1), w.queue
    from waiting w group by w.queue;
end $$;
