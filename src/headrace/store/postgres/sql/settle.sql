-- pieces: a range cut at the multiples of 32, as `ending` needs it.
create or replace function headrace.pieces(p_lo int4, p_hi int4) returns table (block int4, lo int4, hi int4)
language sql immutable rows 16 as $$
    select b, greatest(p_lo, b << 5), least(p_hi, (b << 5) + 31) from generate_series(p_lo >> 5, p_hi >> 5) b
$$;

-- end_whole: all jobs of a lease ended well and told nothing. Neighbours in a block of 32 are one row, also those of
-- different lanes. Only `settle` calls it, and the planner settings of `settle` hold here, too.
create or replace function headrace.end_whole(l headrace.lease, p_now timestamptz) returns void language plpgsql as $$
declare
    v_worker int4 := coalesce((select w.no from headrace.runner w where w.id = l.worker), (select headrace.new_runner(l.worker)));
    v_size   int4;
begin
    if cardinality(l.r_lo) = 1 then
        -- The most common lease. A statement that aggregates costs more than these two.
        v_size := l.r_hi[1] - l.r_lo[1] + 1;
        insert into headrace.ending (batch, finished_at, ord, hi, state, attempt, failures, crashes, worker, claimed_at)
        select l.r_batch[1], p_now, p.lo, nullif(p.hi, p.lo), 1, coalesce(l.r_attempt[1], 1), nullif(l.r_failures[1], 0),
            nullif(l.r_crashes[1], 0), v_worker, l.claimed_at
        from headrace.pieces(l.r_lo[1], l.r_hi[1]) p;
        insert into headrace.tally (running, done, queue) values (-v_size, v_size, l.queues[coalesce(l.r_queue[1], 1)]);
        return;
    end if;
    if l.r_lo = l.r_hi and (select count(distinct b) from unnest(l.r_batch) b) = cardinality(l.r_batch) then
        -- Single jobs of as many calls, such as those of chains, have no neighbours. To look for some takes almost as long as the rest.
        insert into headrace.ending (batch, finished_at, ord, state, attempt, failures, crashes, worker, claimed_at)
        select r.batch, p_now, r.ord, 1, coalesce(r.attempt, 1), nullif(r.failures, 0), nullif(r.crashes, 0), v_worker, l.claimed_at
        from unnest(l.r_batch, l.r_lo, l.r_attempt, l.r_failures, l.r_crashes) r(batch, ord, attempt, failures, crashes);
    else
        insert into headrace.ending (batch, finished_at, ord, hi, state, attempt, failures, crashes, worker, claimed_at)
        select n.batch, p_now, min(n.lo), nullif(max(n.hi), min(n.lo)), 1, coalesce(n.attempt, 1), nullif(n.failures, 0),
            nullif(n.crashes, 0), v_worker, l.claimed_at
        from (
            -- Pieces without a gap have one difference between where they end and how many jobs they and those before them have.
            select r.batch, r.attempt, r.failures, r.crashes, p.block, p.lo, p.hi, p.hi - sum(p.hi - p.lo + 1) over (
                partition by r.batch, p.block, r.attempt, r.failures, r.crashes order by p.lo) as island
            from unnest(l.r_batch, l.r_lo, l.r_hi, l.r_attempt, l.r_failures, l.r_crashes) r(batch, lo, hi, attempt, failures, crashes)
            cross join lateral headrace.pieces(r.lo, r.hi) p
        ) n
        group by n.batch, n.block, n.attempt, n.failures, n.crashes, n.island;
    end if;
    insert into headrace.tally (running, done, queue)
    select -sum(r.hi - r.lo + 1), sum(r.hi - r.lo + 1), l.queues[coalesce(r.queue, 1)]
    from unnest(l.r_lo, l.r_hi, l.r_queue) r(lo, hi, queue) group by 3;
end $$;

-- end_some: the same for some positions of a lease. p_stops: there are requested cancels, which are forgotten.
create or replace function headrace.end_some(l headrace.lease, p_positions int4[], p_now timestamptz, p_stops bool) returns void
language plpgsql as $$
declare
    -- Copies, because a long array of the lease would be read from its TOAST table for each job.
    v_batch    uuid[] := l.r_batch;
    v_lo       int4[] := l.r_lo;
    v_attempt  int4[] := l.r_attempt;
    v_failures int4[] := l.r_failures;
    v_crashes  int4[] := l.r_crashes;
    v_queue    int2[] := l.r_queue;
    v_base     int4[] := '{0}';                       -- the first position of each range
begin
    if cardinality(v_lo) > 1 then
        v_base := array(select (sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1))::int4
            from unnest(l.r_lo, l.r_hi) with ordinality u(lo, hi, o));
    end if;
    with jobs as materialized (
        select v_batch[r.no] as batch, v_lo[r.no] + r.position - v_base[r.no] as ord, coalesce(v_attempt[r.no], 1) as attempt,
            nullif(v_failures[r.no], 0) as failures, nullif(v_crashes[r.no], 0) as crashes, coalesce(v_queue[r.no], 1) as queue
        from (select p.position, width_bucket(p.position, v_base) as no from unnest(p_positions) p(position)) r
    ), ended as (
        insert into headrace.ending (batch, finished_at, ord, hi, state, attempt, failures, crashes, worker, claimed_at)
        select n.batch, p_now, min(n.ord), nullif(max(n.ord), min(n.ord)), 1, n.attempt, n.failures, n.crashes,
            coalesce((select w.no from headrace.runner w where w.id = l.worker), (select headrace.new_runner(l.worker))), l.claimed_at
        from (
            select j.*, j.ord - row_number() over (
                partition by j.batch, j.ord >> 5, j.attempt, j.failures, j.crashes order by j.ord) as island
            from jobs j
        ) n
        group by n.batch, n.ord >> 5, n.attempt, n.failures, n.crashes, n.island
    ), heard as (
        delete from headrace.stop s using jobs j where p_stops and s.batch = j.batch and s.ord = j.ord
    )
    insert into headrace.tally (running, done, queue)
    select -count(*), count(*), l.queues[j.queue] from jobs j group by j.queue;
end $$;

-- at_positions: the jobs at some positions of a lease.
create or replace function headrace.at_positions(l headrace.lease, p_positions int4[]) returns table (batch uuid, ord int4)
language sql stable as $$
    select r.batch, (r.lo + p.position - r.base)::int4
    from (
        select u.*, sum(u.hi - u.lo + 1) over (order by u.o) - (u.hi - u.lo + 1) as base
        from unnest(l.r_batch, l.r_lo, l.r_hi) with ordinality u(batch, lo, hi, o)
    ) r join unnest(p_positions) p(position) on p.position >= r.base and p.position <= r.base + r.hi - r.lo
$$;

-- settle: apply settlements to positions of a lease, durably. It works only while the token exists.
--
--   p_positions   null: all of them
--   p_states      null: all done; else by position 0 again, 1 done, 2 dead, 3 cancelled
--   p_results … p_suspect   null, or one per position; p_ttl with one element counts for all
--   f_*           failures to store, by index into p_positions (from 1)
--   p_now         the clock, when a test injects one
--   w_*, g_*      what jobs that go back wait for, by index into p_positions (from 1), and gates to make for them, see `suspend`
--
-- Refused is null if the lease is lost, else the positions that it does not have. The other two columns are what `follow` has to
-- look at, and queues in which jobs became ready because jobs of this lease ended. A position settled before is not settled
-- again. The lease ends with its last position. A job that goes back takes its old place in its lane. A job that was
-- cancelled meanwhile does not go back.
create or replace function headrace.settle(
    p_token uuid, p_positions int4[], p_states int2[], p_results bytea[], p_ttl interval[], p_failures int4[],
    p_crashes int4[], p_notes text[], p_run_at timestamptz[], p_delay interval[], p_suspect bool[],
    f_index int4[], f_attempt int4[], f_kind text[], f_message text[], f_traceback text[], f_at timestamptz[], f_worker text[],
    p_now timestamptz default null,
    w_index int4[] default null, w_gate uuid[] default null, w_needs int2[] default null,
    g_index int4[] default null, g_id uuid[] default null, g_queue text[] default null, g_sealed bool[] default null,
    g_signalled bool[] default null, g_label text[] default null, g_tenant text[] default null,
    out refused int4[], out follow uuid[], out woken text[]
) language plpgsql
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
    v_fresh   bool[];                                 -- by index into p_positions: not settled yet
    v_plain   int4[];
    v_count   int4 := 0;
    v_stops   bool;
    v_linked  int4;
    v_blocked int4[];                                 -- by index: goes on waiting
    v_batch   uuid[]; v_ord int4[]; v_state int2[];   -- ended jobs that gates or other jobs may depend on
    p         int4;
begin
    select * into l from headrace.lease where token = p_token for update;
    if not found then return; end if;
    refused := '{}';

    if p_positions is null and l.gone is null then
        -- The common case: all jobs of a lease succeeded. The looks for requested cancels and for links, which is that of `is_linked`
        -- for one range, are a part of this statement, because a statement of its own costs more than a look.
        delete from headrace.lease where token = p_token
        returning exists (select from headrace.stop), exists (select from headrace.edge e where e.batch = l.r_batch[1])::int4
            + 2 * exists (select from headrace.blocked b
                where b.gate >= l.r_batch[1] and b.gate <= headrace.job_id(l.r_batch[1], 65535))::int4
        into v_stops, v_linked;
        if cardinality(l.r_lo) > 1 then
            v_linked := headrace.is_linked(l.r_batch);
        end if;
        if l.limited then
            delete from headrace.hold where token = p_token;
        end if;
        perform headrace.end_whole(l, v_now);
        if v_stops then
            delete from headrace.stop s using unnest(l.r_batch, l.r_lo, l.r_hi) r(batch, lo, hi)
            where s.batch = r.batch and s.ord between r.lo and r.hi;
        end if;
        if v_linked = 1 and cardinality(l.r_lo) = 1 then
            follow := headrace.count_run(l.r_batch[1], l.r_lo[1], l.r_hi[1], 1::int2);
        elsif v_linked > 0 then
            select c.follow, c.queues into follow, woken
            from headrace.count_ends(v_linked, l.r_batch, l.r_lo, l.r_hi, array_fill(1::int2, array[cardinality(l.r_lo)]), v_now) c;
        end if;
        return;
    end if;

    v_linked := headrace.is_linked(l.r_batch);
    select sum(hi - lo + 1) into v_size from unnest(l.r_lo, l.r_hi) r(lo, hi);
    if p_positions is null then
        p_positions := array(select generate_series(0, v_size - 1));
    end if;
    v_gone := coalesce(l.gone, repeat('0', v_size)::varbit);
    foreach p in array p_positions loop
        if p < 0 or p >= v_size then
            refused := refused || p;
            v_fresh := v_fresh || false;
        elsif get_bit(v_gone, p) = 1 then
            v_fresh := v_fresh || false;
        else
            v_gone := set_bit(v_gone, p, 1);
            v_fresh := v_fresh || true;
            v_count := v_count + 1;
        end if;
    end loop;
    if v_count = 0 then return; end if;
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
    if w_index is not null then
        v_blocked := headrace.suspend(v_fresh, p_run_at, p_delay, w_index, w_gate, w_needs,
            g_index, g_id, g_queue, g_sealed, g_signalled, g_label, g_tenant, v_now);
    end if;

    -- Jobs that ended well and told nothing.
    if p_states is null or (1 = any (p_states) and (p_results is null or array_position(p_results, null) is not null)) then
        select array_agg(u.position) filter (where u.fresh and u.plain), array_agg(u.fresh and not u.plain order by u.o)
        into v_plain, v_fresh
        from (
            select i.position, i.fresh, i.o, coalesce(i.state, 1) = 1 and i.result is null and i.note is null
                and i.failures is null and i.crashes is null and (f_index is null or i.o <> all (f_index)) as plain
            from unnest(p_positions, v_fresh, p_states, p_results, p_failures, p_crashes, p_notes)
                with ordinality i(position, fresh, state, result, failures, crashes, note, o)
        ) u;
        if v_plain is not null then
            perform headrace.end_some(l, v_plain, v_now, v_stops);
            if v_linked > 0 then
                select array_agg(h.batch), array_agg(h.ord), array_agg(1::int2) into v_batch, v_ord, v_state
                from headrace.at_positions(l, v_plain) h;
            end if;
            if cardinality(v_plain) = v_count then
                if v_linked > 0 then
                    select c.follow, c.queues into follow, woken
                    from headrace.count_ends(v_linked, v_batch, v_ord, v_ord, v_state, v_now) c;
                end if;
                return;
            end if;
        end if;
    end if;

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
            -- What need not wait any more is ready, also before its time.
            case when i.o = any (w_index) and i.o <> all (v_blocked) then null else coalesce(i.run_at, v_now + i.delay) end as run_at,
            coalesce(i.o = any (v_blocked), false) as waits, coalesce(i.suspect, false) as suspect,
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
            coalesce((select w.no from headrace.runner w where w.id = l.worker), (select headrace.new_runner(l.worker))), l.claimed_at
        from told t where t.state <> 0 or t.stopped
    ), back as materialized (
        select t.*, j.seq, j.priority, coalesce(j.tenant, '') as tenant, coalesce(j.lane, 0) as lane, j.limits,
            t.run_at is not null and t.run_at > v_now and not t.waits as later
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
            from back b where not b.later and not b.waits
        ) n
        group by n.seq, n.lane, n.batch, n.priority, n.attempt, n.failures, n.crashes, n.suspect, n.queue, n.tenant, n.note, n.limits,
            n.island
    ), put_off as (
        insert into headrace.scheduled
            (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select b.run_at, b.seq, b.lane, b.batch, b.ord, b.ord, b.priority, b.attempt, b.failures, b.crashes, b.suspect, b.queue,
            b.tenant, b.note, b.limits
        from back b where b.later
    ), suspended as (
        insert into headrace.blocked (gate, needs, run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant,
            note, limits)
        select distinct w.gate, w.needs, b.run_at, b.seq, b.lane, b.batch, b.ord, b.ord, b.priority, b.attempt, b.failures, b.crashes, b.suspect,
            b.queue, b.tenant, b.note, b.limits
        from unnest(w_index, w_gate, w_needs) w(index, gate, needs) join back b on b.index = w.index and b.waits
    ), failed as (
        insert into headrace.failure (batch, at, ord, attempt, kind, message, traceback, worker)
        select t.batch, f.at, t.ord, f.attempt, f.kind, f.message, f.traceback, f.worker
        from unnest(f_index, f_attempt, f_kind, f_message, f_traceback, f_at, f_worker)
            f(index, attempt, kind, message, traceback, at, worker)
        join told t on t.index = f.index
        returning batch, ord
    ), heard as (
        delete from headrace.stop s using told t where v_stops and s.batch = t.batch and s.ord = t.ord
    ), counted as (
        insert into headrace.tally (running, ready, scheduled, blocked, done, dead, failed, queue)
        select -count(*), count(*) filter (where t.state = 0 and not t.stopped and not t.waits and (t.run_at is null or t.run_at <= v_now)),
            count(*) filter (where t.state = 0 and not t.stopped and not t.waits and t.run_at > v_now),
            count(*) filter (where t.state = 0 and not t.stopped and t.waits),
            count(*) filter (where t.state = 1), count(*) filter (where t.state = 2),
            count(*) filter (where t.index = any (f_index)), t.queue
        from told t group by t.queue
    )
    -- All ends are counted together, so that a call leaves one toll for each gate.
    select v_batch || array_agg(t.batch), v_ord || array_agg(t.ord),
        v_state || array_agg(case when t.state = 0 then 3 else t.state end::int2)
    into v_batch, v_ord, v_state
    from told t where v_linked > 0 and (t.state <> 0 or t.stopped);
    if v_batch is not null then
        select c.follow, c.queues into follow, woken
        from headrace.count_ends(v_linked, v_batch, v_ord, v_ord, v_state, v_now) c;
    end if;
    if w_index is not null then
        if exists (select from unnest(w_index) w where w <> all (v_blocked)) then
            woken := woken || l.queues;
        end if;
    end if;
end $$;
