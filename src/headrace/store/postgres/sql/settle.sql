-- settle: apply settlements to positions of a lease, durably. It works only while the token exists.
--
--   p_positions   null: all of them
--   p_states      null: all done; else by position 0 again, 1 done, 2 dead, 3 cancelled
--   p_results … p_suspect   null, or one per position; p_ttl with one element counts for all
--   f_*           failures to store, by index into p_positions (from 1)
--   p_now         the clock, when a test injects one
--
-- Returns null if the lease is lost, else the positions that it does not have. A position settled before is not settled
-- again. The lease ends with its last position. A job that goes back takes its old place in its lane. A job that was
-- cancelled meanwhile does not go back.
create or replace function headrace.settle(
    p_token uuid, p_positions int4[], p_states int2[], p_results bytea[], p_ttl interval[], p_failures int4[],
    p_crashes int4[], p_notes text[], p_run_at timestamptz[], p_delay interval[], p_suspect bool[],
    f_index int4[], f_attempt int4[], f_kind text[], f_message text[], f_traceback text[], f_at timestamptz[], f_worker text[],
    p_now timestamptz default null
) returns int4[] language plpgsql
set plan_cache_mode = force_generic_plan
set jit = off
set enable_mergejoin = off
set enable_seqscan = off
as $$
declare
    l         headrace.lease;
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_size    int4;
    v_gone    varbit;
    v_fresh   bool[];                                 -- by index into p_positions: not settled before
    v_count   int4 := 0;
    v_refused int4[] := '{}';
    v_stops   bool;
    p         int4;
begin
    select * into l from headrace.lease where token = p_token for update;
    if not found then return null; end if;

    if p_positions is null and l.gone is null then
        -- The common case: all jobs of a lease succeeded.
        delete from headrace.lease where token = p_token;
        if l.limited then
            delete from headrace.hold where token = p_token;
        end if;
        insert into headrace.ending (batch, finished_at, ord, state, attempt, failures, crashes, worker, claimed_at)
        select r.batch, v_now, g.ord, 1, coalesce(r.attempt, 1), nullif(r.failures, 0), nullif(r.crashes, 0),
            (select w.no from headrace.runner w where w.id = l.worker), l.claimed_at
        from unnest(l.r_batch, l.r_lo, l.r_hi, l.r_attempt, l.r_failures, l.r_crashes) r(batch, lo, hi, attempt, failures, crashes)
        cross join lateral generate_series(r.lo, r.hi) g(ord);
        insert into headrace.tally (running, done, queue)
        select -sum(r.hi - r.lo + 1), sum(r.hi - r.lo + 1), l.queues[coalesce(r.queue, 1)]
        from unnest(l.r_lo, l.r_hi, l.r_queue) r(lo, hi, queue) group by 3;
        if exists (select from headrace.stop) then
            delete from headrace.stop s using unnest(l.r_batch, l.r_lo, l.r_hi) r(batch, lo, hi)
            where s.batch = r.batch and s.ord between r.lo and r.hi;
        end if;
        return v_refused;
    end if;

    select sum(hi - lo + 1) into v_size from unnest(l.r_lo, l.r_hi) r(lo, hi);
    if p_positions is null then
        p_positions := array(select generate_series(0, v_size - 1));
    end if;
    v_gone := coalesce(l.gone, repeat('0', v_size)::varbit);
    foreach p in array p_positions loop
        if p < 0 or p >= v_size then
            v_refused := v_refused || p;
            v_fresh := v_fresh || false;
        elsif get_bit(v_gone, p) = 1 then
            v_fresh := v_fresh || false;
        else
            v_gone := set_bit(v_gone, p, 1);
            v_fresh := v_fresh || true;
            v_count := v_count + 1;
        end if;
    end loop;
    if v_count = 0 then return v_refused; end if;
    if v_count = l.unsettled then
        delete from headrace.lease where token = p_token;
        if l.limited then
            delete from headrace.hold where token = p_token;
        end if;
    else
        if l.limited then
            perform headrace.give_back(l, array(select u.p from unnest(p_positions, v_fresh) u(p, fresh) where u.fresh));
        end if;
        update headrace.lease set gone = v_gone, unsettled = l.unsettled - v_count where token = p_token;
    end if;
    v_stops := exists (select from headrace.stop);

    with held as (
        select r.batch, g.ord, (r.base + g.ord - r.lo)::int4 as position, coalesce(r.attempt, 1) as attempt,
            coalesce(r.failures, 0) as failures, coalesce(r.crashes, 0) as crashes, l.queues[coalesce(r.queue, 1)] as queue
        from (
            select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
            from unnest(l.r_batch, l.r_lo, l.r_hi, l.r_attempt, l.r_failures, l.r_crashes, l.r_queue)
                with ordinality u(batch, lo, hi, attempt, failures, crashes, queue, o)
        ) r cross join lateral generate_series(r.lo, r.hi) g(ord)
    ), told as materialized (
        select h.batch, h.ord, h.attempt, h.queue, i.o as index,
            coalesce(i.failures, h.failures) as failures, coalesce(i.crashes, h.crashes) as crashes,
            coalesce(i.state, 1)::int2 as state, i.result, v_now + case when cardinality(p_ttl) = 1 then p_ttl[1] else i.ttl end as result_until, i.note,
            coalesce(i.run_at, v_now + i.delay) as run_at, coalesce(i.suspect, false) as suspect,
            s.batch is not null as stopped, s.reason
        from unnest(p_positions, v_fresh, p_states, p_results, p_ttl, p_failures, p_crashes, p_notes, p_run_at, p_delay, p_suspect)
            with ordinality i(position, fresh, state, result, ttl, failures, crashes, note, run_at, delay, suspect, o)
        join held h on h.position = i.position
        left join headrace.stop s on v_stops and s.batch = h.batch and s.ord = h.ord
        where i.fresh
    ), ended as (
        insert into headrace.ending
            (batch, finished_at, ord, state, attempt, failures, crashes, result, result_until, note, worker, claimed_at)
        select t.batch, v_now, t.ord, case when t.state = 0 then 3 else t.state end, t.attempt, nullif(t.failures, 0),
            nullif(t.crashes, 0), t.result, case when t.result is not null then t.result_until end,
            case when t.state = 0 then t.reason when t.state = 3 then coalesce(t.note, t.reason) else t.note end,
            (select w.no from headrace.runner w where w.id = l.worker), l.claimed_at
        from told t where t.state <> 0 or t.stopped
    ), back as materialized (
        select t.*, j.seq, j.priority, coalesce(j.tenant, '') as tenant, coalesce(j.lane, 0) as lane, j.limits,
            t.run_at is not null and t.run_at > v_now as later
        from told t join headrace.job j on j.batch = t.batch and j.ord = t.ord
        where t.state = 0 and not t.stopped
    ), now_ready as (
        -- Neighbours with the same values go back as one range. A suspect stays alone.
        insert into headrace.ready
            (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select n.seq, n.lane, n.batch, min(n.ord), max(n.ord), n.priority, n.attempt, n.failures, n.crashes, n.suspect,
            n.queue, n.tenant, n.note, n.limits
        from (
            select b.*, case when b.suspect then b.ord else b.ord - row_number() over (
                partition by b.batch, b.lane, b.tenant, b.priority, b.queue, b.attempt, b.failures, b.crashes, b.suspect, b.note
                order by b.ord) end as island
            from back b where not b.later
        ) n
        group by n.seq, n.lane, n.batch, n.priority, n.attempt, n.failures, n.crashes, n.suspect, n.queue, n.tenant, n.note, n.limits,
            n.island
    ), put_off as (
        insert into headrace.scheduled
            (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select b.run_at, b.seq, b.lane, b.batch, b.ord, b.ord, b.priority, b.attempt, b.failures, b.crashes, b.suspect, b.queue,
            b.tenant, b.note, b.limits
        from back b where b.later
    ), failed as (
        insert into headrace.failure (batch, at, ord, attempt, kind, message, traceback, worker)
        select t.batch, f.at, t.ord, f.attempt, f.kind, f.message, f.traceback, f.worker
        from unnest(f_index, f_attempt, f_kind, f_message, f_traceback, f_at, f_worker)
            f(index, attempt, kind, message, traceback, at, worker)
        join told t on t.index = f.index
        returning batch, ord
    ), heard as (
        delete from headrace.stop s using told t where v_stops and s.batch = t.batch and s.ord = t.ord
    )
    insert into headrace.tally (running, ready, scheduled, done, dead, failed, queue)
    select -count(*), count(*) filter (where t.state = 0 and not t.stopped and (t.run_at is null or t.run_at <= v_now)),
        count(*) filter (where t.state = 0 and not t.stopped and t.run_at > v_now),
        count(*) filter (where t.state = 1), count(*) filter (where t.state = 2),
        count(*) filter (where t.index = any (f_index)), t.queue
    from told t group by t.queue;
    return v_refused;
end $$;
