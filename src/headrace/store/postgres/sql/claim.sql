-- claim: take up to p_limit ready jobs under one lease.
--
--   p_queues, p_limit, p_token, p_worker, p_ttl    what the worker asks for
--   ring_*      where the last claim of each priority stopped on the ring of (queue, tenant, lane)
--   head_*      null: look at everything. Otherwise known lanes and the seq from which on each is worth looking at
--               (under an old snapshot the dead entries before it cost milliseconds); when they hold nothing,
--               everything is looked at after all
--   p_now       the clock, when a test injects one
--
-- Strictly higher priority first, over all asked queues. Inside a priority round robin over the lanes that have
-- something, FIFO inside a lane. A suspect is taken alone: first met, just it; met later, the claim stops before it.
-- Rows are locked in one statement and taken in the next, which sees what was locked: never twice, never lost.
--
-- Answers one row per piece of a range (at most 128 jobs, so that no array outgrows memory); on the first one also the
-- new place on the ring and what the search cost: `wasted` index entries met that nobody needed, `spent` seconds.
create or replace function headrace.claim(
    p_queues text[], p_limit int4, p_token uuid, p_worker uuid, p_ttl interval,
    ring_priority int2[], ring_queue text[], ring_tenant text[], ring_lane int8[],
    head_priority int2[], head_queue text[], head_tenant text[], head_lane int8[], head_seq int8[],
    p_now timestamptz default null
) returns table (
    queue text, priority int2, tenant text, lane int8, seq int8, batch uuid, ord int4, attempt int4, failures int4,
    crashes int4, suspect bool, enqueued_at timestamptz, tasks text[], payloads bytea[], options bytea[],
    next_queue text, next_tenant text, next_lane int8, wasted int8, spent float8
) language plpgsql rows 4
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_begun   timestamptz := clock_timestamp();
    v_seen    int8 := pg_stat_get_xact_tuples_returned('headrace.ready_lane'::regclass);
    v_queues  text[];
    v_left    int4 := p_limit;
    v_quantum int4 := greatest(1, p_limit / 50);
    v_lanes   int4;                                   -- at most so many lanes are looked at in one round
    v_heads   bool := head_seq is not null;
    v_level   int2;                                   -- the priority being served
    v_tries   int4 := 0;
    v_stop    bool := false;                          -- a suspect was met
    -- where the ring begins and goes on
    v_from_queue text; v_from_tenant text; v_from_lane int8;
    v_to_queue text; v_to_tenant text; v_to_lane int8;
    v_round   int4;
    v_circle  bool;
    -- the lanes of this round
    l_queue text[]; l_tenant text[]; l_lane int8[]; l_seq int8[]; l_quota int4[]; l_rows int4[]; l_len int4[];
    x_queue text[]; x_tenant text[]; x_lane int8[]; x_len int4[];
    v_share int4; v_full int4; v_rest int4; v_pass int4; v_count int4; i int4;
    -- what one pass locked and took
    t_whole tid[]; t_part tid[]; t_part_lo int4[]; t_more int4[]; t_got int4;
    n_queue text[]; n_tenant text[]; n_lane int8[]; n_seq int8[]; n_batch uuid[]; n_lo int4[]; n_hi int4[];
    n_attempt int4[]; n_failures int4[]; n_crashes int4[]; n_suspect bool;
    -- everything taken
    a_queue text[] := '{}'; a_priority int2[] := '{}'; a_tenant text[] := '{}'; a_lane int8[] := '{}';
    a_seq int8[] := '{}'; a_batch uuid[] := '{}'; a_lo int4[] := '{}'; a_hi int4[] := '{}';
    a_attempt int4[] := '{}'; a_failures int4[] := '{}'; a_crashes int4[] := '{}'; a_suspect bool := false;
    v_names text[]; v_now timestamptz; v_took int4;
begin
    -- A claim lost in a crash is simply undone, so nobody waits for the disk here.
    perform set_config('synchronous_commit', 'off', true);
    -- `pause` takes this lock alone: when it returns, every claim that did not see it is over.
    perform pg_advisory_xact_lock_shared(1214538830, 1);
    select array_agg(q order by q) into v_queues
    from (select distinct u.q collate "C" as q from unnest(p_queues) u(q)) d
    where not exists (select from headrace.paused_queue p where p.queue = d.q);
    if v_queues is null then return; end if;
    v_lanes := greatest(2, (p_limit + v_quantum - 1) / v_quantum);

    <<search>> loop
        v_level := null;
        <<level>> loop
            -- 1. The next lower priority that has anything.
            if v_heads then
                select max(h.p) into v_level from unnest(head_priority, head_queue) h(p, q)
                where (v_level is null or h.p < v_level) and h.q = any (v_queues);
            elsif v_level is null then
                select max(x.priority) into v_level from unnest(v_queues) u(q)
                cross join lateral (select r.priority from headrace.ready r where r.queue = u.q
                    order by r.queue, r.priority desc limit 1) x;
            else
                select max(x.priority) into v_level from unnest(v_queues) u(q)
                cross join lateral (select r.priority from headrace.ready r where r.queue = u.q and r.priority < v_level
                    order by r.queue, r.priority desc limit 1) x;
            end if;
            exit level when v_level is null;

            next_queue := null; next_tenant := null; next_lane := null;
            v_from_queue := ''; v_from_tenant := ''; v_from_lane := 0; v_to_queue := null;
            i := array_position(ring_priority, v_level);
            if i is not null then
                v_from_queue := ring_queue[i]; v_from_tenant := ring_tenant[i]; v_from_lane := ring_lane[i];
                v_to_queue := v_from_queue; v_to_tenant := v_from_tenant; v_to_lane := v_from_lane;
                if v_from_queue <> all (v_queues) then
                    -- Not asked for this time, or paused: begin behind all of its lanes.
                    v_from_tenant := E'\x7f';
                end if;
            end if;

            v_round := 0;
            <<ring>> loop
                v_round := v_round + 1;
                -- 2. The lanes of this round, from where the last claim stopped.
                if v_heads then
                    select array_agg(h.q order by h.behind, h.q, h.t, h.l), array_agg(h.t order by h.behind, h.q, h.t, h.l),
                        array_agg(h.l order by h.behind, h.q, h.t, h.l), array_agg(h.s order by h.behind, h.q, h.t, h.l),
                        array_agg(1)
                    into l_queue, l_tenant, l_lane, l_seq, l_len
                    from (select u.*, (u.q, u.t, u.l) <= (v_from_queue, v_from_tenant, v_from_lane) as behind
                        from unnest(head_priority, head_queue, head_tenant, head_lane, head_seq) u(p, q, t, l, s)
                        where u.p = v_level and u.q = any (v_queues)) h;
                    l_len := array_fill(null::int4, array[cardinality(l_queue)]);
                    v_circle := true;
                else
                    l_queue := '{}'; l_tenant := '{}'; l_lane := '{}'; l_len := '{}';
                    -- From the place on the ring to the end; then, when there is room, from the start to the place.
                    for i in 1 .. 2 loop
                        with recursive walk(queue, tenant, lane, len, n) as (
                            select v_from_queue collate "C", v_from_tenant collate "C", v_from_lane, null::int4, 0
                            union all
                            select y.queue, y.tenant, y.lane, y.len, w.n + 1
                            from walk w
                            cross join lateral (
                                select z.* from (
                                    (select r.queue, r.tenant, r.lane, r.hi - r.lo + 1 as len from headrace.ready r
                                     where r.queue = w.queue and r.priority = v_level and (r.tenant, r.lane) > (w.tenant, w.lane)
                                     order by r.tenant, r.lane, r.seq, r.hi limit 1)
                                    union all
                                    (select x.queue, x.tenant, x.lane, x.len from unnest(v_queues) u(q)
                                     cross join lateral (select r.queue, r.tenant, r.lane, r.hi - r.lo + 1 as len
                                        from headrace.ready r where r.queue = u.q and r.priority = v_level
                                        order by r.tenant, r.lane, r.seq, r.hi limit 1) x
                                     where u.q collate "C" > w.queue
                                     limit 1)
                                ) z limit 1
                            ) y
                            where w.n < v_lanes
                        )
                        select array_agg(w.queue order by w.n), array_agg(w.tenant order by w.n),
                            array_agg(w.lane order by w.n), array_agg(w.len order by w.n)
                        into x_queue, x_tenant, x_lane, x_len
                        from walk w
                        where w.n > 0 and (i = 1 or (w.queue collate "C", w.tenant collate "C", w.lane) <= (v_to_queue, v_to_tenant, v_to_lane));
                        if x_queue is not null then
                            l_queue := l_queue || x_queue; l_tenant := l_tenant || x_tenant; l_lane := l_lane || x_lane;
                            l_len := l_len || x_len;
                        end if;
                        v_circle := cardinality(l_queue) < v_lanes;
                        exit when not v_circle or v_to_queue is null or i = 2;
                        v_from_queue := ''; v_from_tenant := ''; v_from_lane := 0;
                    end loop;
                    l_seq := array_fill(0::int8, array[cardinality(l_queue)]);
                end if;
                v_count := coalesce(cardinality(l_queue), 0);
                exit ring when v_count = 0;

                -- 3. Give each lane its share; lanes that have more are asked again until the lease is full.
                v_pass := 0; v_took := 0;
                l_rows := array_fill(1, array[v_count]);
                <<pass>> loop
                    v_pass := v_pass + 1;
                    v_full := case when v_circle then (v_left + v_count - 1) / v_count else v_quantum end;
                    v_rest := v_left; l_quota := '{}';
                    for i in 1 .. v_count loop
                        v_share := least(v_full, v_rest);
                        v_rest := v_rest - v_share;
                        l_quota := l_quota || v_share;
                        -- The last lane with a full share is where the next claim goes on: one that is cut short
                        -- comes first then.
                        if v_pass = 1 and v_share = v_full and (v_count > 1 or not v_circle) then
                            next_queue := l_queue[i]; next_tenant := l_tenant[i]; next_lane := l_lane[i];
                        end if;
                        -- Lock about as many rows as the share needs, judged by the lane's first one.
                        l_rows[i] := case when v_share = 0 then 1
                            when v_pass > 1 then least(v_share, l_rows[i] * 4)
                            when l_len[i] is null then least(v_share, 2)
                            else least(v_share, (v_share + l_len[i] - 1) / l_len[i]) end;
                    end loop;

                    with found as materialized (
                        select l.o, l.quota, l.most, x.*
                        from unnest(l_queue, l_tenant, l_lane, l_seq, l_quota, l_rows)
                            with ordinality l(queue, tenant, lane, seq, quota, most, o)
                        cross join lateral (
                            select r.ctid as tid, r.queue, r.tenant, r.lane, r.seq, r.batch, r.lo, r.hi, r.attempt, r.failures,
                                r.crashes, r.suspect
                            from headrace.ready r
                            where r.queue = l.queue and r.priority = v_level and r.tenant = l.tenant and r.lane = l.lane
                                and r.seq >= l.seq
                            order by r.seq, r.hi
                            limit l.most
                            for update skip locked
                        ) x
                        where l.quota > 0
                    ), counted as materialized (
                        select f.*, f.hi - f.lo + 1 as len,
                            sum(f.hi - f.lo + 1) over (partition by f.o order by f.seq, f.hi) as upto,
                            count(*) over (partition by f.o) as rows,
                            row_number() over (order by f.o, f.seq, f.hi) as nth,
                            count(*) filter (where f.suspect) over (order by f.o, f.seq, f.hi) as suspects
                        from found f
                    ), taken as materialized (
                        select c.*, least(c.len, c.quota - (c.upto - c.len))::int4 as take
                        from counted c
                        where c.upto - c.len < c.quota
                            and (c.suspects = 0 or (c.nth = 1 and c.suspect and v_left = p_limit))
                    )
                    select array_agg(t.tid) filter (where t.take = t.len), array_agg(t.tid) filter (where t.take < t.len),
                        array_agg(t.lo + t.take) filter (where t.take < t.len),
                        array_agg(t.queue), array_agg(t.tenant), array_agg(t.lane),
                        array_agg(t.seq), array_agg(t.batch), array_agg(t.lo),
                        array_agg(t.lo + t.take - 1), array_agg(t.attempt),
                        array_agg(t.failures), array_agg(t.crashes),
                        bool_or(t.suspect), coalesce(sum(t.take), 0),
                        (select coalesce(max(c.suspects), 0) > 0 from counted c),
                        -- May have more: lanes that gave all rows they were asked for, and those not asked yet.
                        (select array_agg(l.o::int4) from unnest(l_quota) with ordinality l(quota, o)
                         where l.quota = 0 or l.o = any (array(select c.o from counted c where c.rows >= c.most)))
                    into t_whole, t_part, t_part_lo, n_queue, n_tenant, n_lane, n_seq, n_batch, n_lo, n_hi, n_attempt, n_failures, n_crashes,
                        n_suspect, t_got, v_stop, t_more
                    from (select * from taken order by nth) t;

                    if t_got > 0 then
                        if t_whole is not null then
                            delete from headrace.ready r where r.ctid = any (t_whole);
                        end if;
                        if t_part is not null then
                            update headrace.ready r set lo = u.lo from unnest(t_part, t_part_lo) u(tid, lo) where r.ctid = u.tid;
                        end if;
                        a_queue := a_queue || n_queue; a_tenant := a_tenant || n_tenant; a_lane := a_lane || n_lane;
                        a_priority := a_priority || array_fill(v_level, array[cardinality(n_seq)]);
                        a_seq := a_seq || n_seq; a_batch := a_batch || n_batch; a_lo := a_lo || n_lo; a_hi := a_hi || n_hi;
                        a_attempt := a_attempt || n_attempt; a_failures := a_failures || n_failures;
                        a_crashes := a_crashes || n_crashes; a_suspect := a_suspect or n_suspect;
                        v_left := v_left - t_got; v_took := v_took + t_got;
                    end if;
                    exit search when v_left <= 0 or v_stop;
                    exit pass when t_more is null or not v_circle or v_pass >= 12;
                    select array_agg(l_queue[m] order by m), array_agg(l_tenant[m] order by m), array_agg(l_lane[m] order by m),
                        array_agg(l_seq[m] order by m), array_agg(l_len[m] order by m), array_agg(l_rows[m] order by m), count(*)
                    into l_queue, l_tenant, l_lane, l_seq, l_len, l_rows, v_count
                    from unnest(t_more) m;
                end loop;

                exit ring when v_circle or v_heads or v_round >= 40;
                v_from_queue := l_queue[v_count]; v_from_tenant := l_tenant[v_count]; v_from_lane := l_lane[v_count];
            end loop;

            -- Everything seen here was being taken by others: wait for the first of them, and look again.
            if v_took = 0 and not v_heads and v_count > 0 and cardinality(a_seq) = 0 and v_tries < 5 then
                v_tries := v_tries + 1;
                perform from headrace.ready r
                where r.queue = l_queue[1] and r.priority = v_level and r.tenant = l_tenant[1] and r.lane = l_lane[1]
                order by r.seq, r.hi limit 1 for update;
                continue search;
            end if;
        end loop;
        exit search when not v_heads or cardinality(a_seq) > 0;
        v_heads := false;
    end loop;

    wasted := pg_stat_get_xact_tuples_returned('headrace.ready_lane'::regclass) - v_seen - 4 * coalesce(cardinality(a_seq), 0);
    spent := extract(epoch from clock_timestamp() - v_begun);
    if cardinality(a_seq) = 0 then return; end if;

    v_now := coalesce(p_now, clock_timestamp());
    select array_agg(distinct q) into v_names from unnest(a_queue) q;
    a_attempt := array(select a + 1 from unnest(a_attempt) with ordinality u(a, o) order by o);
    insert into headrace.lease (token, worker, until, claimed_at, suspect, unsettled, queues, r_batch, r_lo, r_hi,
        r_attempt, r_failures, r_crashes, r_queue)
    values (p_token, p_worker, v_now + p_ttl, v_now, a_suspect, p_limit - v_left, v_names, a_batch, a_lo, a_hi,
        case when 1 = all (a_attempt) then null else a_attempt end,
        case when 0 = all (a_failures) then null else a_failures end,
        case when 0 = all (a_crashes) then null else a_crashes end,
        case when cardinality(v_names) = 1 then null
            else array(select array_position(v_names, q)::int2 from unnest(a_queue) with ordinality u(q, o) order by o) end);
    insert into headrace.tally (ready, running, queue)
    select -sum(u.hi - u.lo + 1), sum(u.hi - u.lo + 1), u.queue from unnest(a_queue, a_lo, a_hi) u(queue, lo, hi) group by u.queue;

    return query
    select u.queue, u.priority, u.tenant, u.lane, u.seq, u.batch, j.ord, u.attempt, u.failures, u.crashes, a_suspect,
        j.enqueued_at, j.tasks, j.payloads, j.options, next_queue, next_tenant, next_lane, wasted, spent
    from unnest(a_queue, a_priority, a_tenant, a_lane, a_seq, a_batch, a_lo, a_hi, a_attempt, a_failures, a_crashes)
        with ordinality u(queue, priority, tenant, lane, seq, batch, lo, hi, attempt, failures, crashes, o)
    cross join lateral generate_series(u.lo, u.hi, 128) g(first)
    cross join lateral (
        select min(k.ord) as ord, min(k.enqueued_at) as enqueued_at, array_agg(k.task) as tasks,
            array_agg(k.payload) as payloads, case when count(k.options) > 0 then array_agg(k.options) end as options
        from (select b.ord, b.enqueued_at, b.task, b.payload, b.options from headrace.job b
            where b.batch = u.batch and b.ord between g.first and least(g.first + 127, u.hi) order by b.ord) k
    ) j
    order by u.o, g.first;
end $$;
