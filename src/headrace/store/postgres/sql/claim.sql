-- claim: take up to p_limit ready jobs under one lease.
--
--   p_queues, p_limit, p_token, p_worker, p_ttl    what the worker asks for; many queues may come as one list, see `live_queues`
--   p_tenant    this tenant's jobs only; null: all tenants
--   p_weights   queue → tenant → jobs in a turn (null: all alike)
--   b_*         bands, in their order: priorities b_lowest to b_highest, at most b_share jobs, of the queues b_queues (joined
--               by comma; null: all). Null: one band with everything
--   ring_*      where the turns of a queue's priority stopped, and what that tenant is still owed; the queue that was
--               served last comes last
--   owed_*      what tenants are owed that earlier claims passed over, of a queue's priority the oldest debt first
--   lane_*      the lane that was served last, of tenants with several
--   head_*      null: search everything. Otherwise known lanes and the seq from which each should be searched
--               (under an old snapshot the dead entries before it cost milliseconds); when they hold nothing,
--               everything is searched
--   p_many      with this many wasted index entries, the client needs the lanes' heads
--   p_looks     this many lanes of a queue's priority may be checked where limits may block them
--   p_now       the clock, when a test injects one
--   p_await     wait first for the claim that counts this limit key: the last answer said `busy`
--   p_probe     with heads: search also priorities and queues without a known head, by one descent each
--   p_bytes     the payloads of several jobs are together at most this long (null: of any length). A claim that finds
--               more fails with HR001 and has then taken nothing
--   p_fewer     such a claim does not fail: it is repeated inside with as many jobs as fit, in a subtransaction
--   p_sole      the last claim left nothing, so one new range is the likely case: it is taken without a search and without turns
--
-- In each band strictly higher priority first, over all asked queues. Inside a priority queues take turns, and inside a
-- queue tenants (`take_turns`, `take_limited`); FIFO inside a lane. A suspect is taken alone: if it is met first, only
-- it is taken; if it is met later, the claim stops before it.
--
-- The first row always comes. It has what the client should remember: new places of the turns, what tenants are owed now in the
-- queues and priorities that have new places (due_*; null: nothing), lanes served, the cost
-- of the search (`wasted` index entries, `spent` seconds), when a skipped lane opens, and whether there is `more` to
-- read. If nothing was taken, it also has whether the token has a lease already (`held`: this claim was made before),
-- and which limit key another claim was counting while this one could not wait for it (`busy`): then there may be jobs
-- when that claim has ended. If jobs were taken, `more` says whether others may have been left, and the row has their ranges as well (r_*; null where all are the same), and
-- the rows have the jobs in their order, at most 128 each, so that no array gets too large for memory.
-- A payload of more than 2,000 bytes is null in these arrays. The large ones follow in their order, each as `large` of a
-- row of its own (that of a single job in the first row). There it is a reference until the server sends it, so it is
-- neither copied into an array nor written to a temporary file.
create or replace function headrace.claim(
    p_queues text[], p_limit int4, p_token uuid, p_worker uuid, p_ttl interval, p_tenant text, p_weights jsonb,
    b_lowest int2[], b_highest int2[], b_share int4[], b_queues text[],
    ring_priority int2[], ring_queue text[], ring_tenant text[], ring_owed int4[],
    lane_priority int2[], lane_queue text[], lane_tenant text[], lane_lane int8[],
    head_priority int2[], head_queue text[], head_tenant text[], head_lane int8[], head_seq int8[], p_many int4,
    p_looks int4, p_now timestamptz default null, p_await int4 default null, p_probe bool default false,
    owed_priority int2[] default null, owed_queue text[] default null, owed_tenant text[] default null, owed_jobs int4[] default null,
    p_bytes int8 default null, p_fewer bool default false, p_sole bool default false
) returns table (
    turn_priority int2[], turn_queue text[], turn_tenant text[], turn_owed int4[],
    served_priority int2[], served_queue text[], served_tenant text[], served_lane int8[],
    wasted int8, spent float8, opens interval, more bool, suspect bool, limited bool,
    r_queue text[], r_priority int2[], r_tenant text[], r_lane int8[], r_seq int8[], r_batch uuid[], r_lo int4[], r_hi int4[],
    r_attempt int4[], r_failures int4[], r_crashes int4[], r_at timestamptz[],
    tasks text[], payloads bytea[], options bytea[], held bool, busy int4, large bytea,
    due_priority int2[], due_queue text[], due_tenant text[], due_jobs int4[]
) language plpgsql rows 4
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_variable
declare
    v_begun   timestamptz := clock_timestamp();
    v_now     timestamptz := coalesce(p_now, v_begun);
    v_seen    int8 := pg_stat_get_xact_tuples_returned('headrace.ready_lane'::regclass);
    v_left    int4 := p_limit;
    v_heads   bool := head_seq is not null;
    v_clean   bool := p_await is null;                -- holds no limit key and no range: may wait for claims that do
    v_many    bool := left(p_queues[1], 1) = ',';     -- the queues come as a list
    v_queues  text[];                                 -- asked for and not paused; of many, those that have anything
    v_halted  text[];                                 -- paused queues
    v_paused  text[];                                 -- paused tenants
    v_named   text[] := '{}';                         -- queues from which jobs were taken
    v_one     bool := true;                           -- all of it from one queue and priority: r_queue and r_priority have one element
    v_stop    bool := false;                          -- a suspect was met
    v_alone   bool := false;                          -- the only range was taken
    v_opens   timestamptz;
    v_begins int4[]; v_ends int4[]; v_batches uuid[];
    v_large   bool := false;                          -- a payload is too large for the arrays
    v_fit     int4;                                   -- this many jobs have together no more than p_bytes
    -- the band, the priority being served, its queues
    v_share int4; v_band text[]; v_level int2; v_next int2; v_names text[]; v_quota int4; v_wanted int4; v_more text[]; v_name text; i int4; x record;
    h_tenant text[]; h_seq int8[]; s_tenant text[]; s_lane int8[]; d_tenant text[]; d_jobs int4[];
begin
    -- Rows are locked in one statement, and counted and taken in the next, which must see what the last holder of the
    -- lock did.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'headrace.claim needs the isolation level read committed, this transaction has %', current_setting('transaction_isolation')
            using errcode = 'invalid_transaction_state';
    end if;
    while p_fewer and p_limit > 1 loop
        begin
            return query select * from headrace.claim(p_queues, p_limit, p_token, p_worker, p_ttl, p_tenant, p_weights,
                b_lowest, b_highest, b_share, b_queues, ring_priority, ring_queue, ring_tenant, ring_owed,
                lane_priority, lane_queue, lane_tenant, lane_lane, head_priority, head_queue, head_tenant, head_lane, head_seq, p_many,
                p_looks, p_now, p_await, p_probe, owed_priority, owed_queue, owed_tenant, owed_jobs, p_bytes);
            return;
        exception when sqlstate 'HR001' then
            get stacked diagnostics v_name = pg_exception_detail;
            p_limit := v_name; v_left := p_limit;
        end;
    end loop;
    -- A crash simply undoes a claim, so it does not wait for the disk.
    v_name := set_config('synchronous_commit', 'off', true);
    -- `pause` and `limit` take this lock exclusively: when they return, every claim that did not see them has ended.
    perform pg_advisory_xact_lock_shared(1214538830, 1);
    if p_await is not null then
        perform pg_advisory_xact_lock(1214538831, p_await);
    end if;
    more := false; suspect := false; limited := false;
    r_queue := '{}'; r_priority := '{}'; r_tenant := '{}'; r_batch := '{}'; r_lo := '{}'; r_hi := '{}';
    turn_priority := '{}'; turn_queue := '{}'; turn_tenant := '{}'; turn_owed := '{}';
    served_priority := '{}'; served_queue := '{}'; served_tenant := '{}'; served_lane := '{}';

    if exists (select from headrace.pause) then
        select array_agg(p.name) filter (where p.kind = 'tenant'), array_agg(p.name) filter (where p.kind = 'queue'), min(p.until)
        into v_paused, v_halted, v_opens
        from headrace.pause p
        where (p.kind = 'tenant' or (p.kind = 'queue' and (p.name = any (p_queues) or v_many and position(',' || p.name || ',' in p_queues[1]) > 0)))
            and (p.until is null or p.until > v_now);
    end if;

    if p_sole and b_share is null and p_tenant is null and v_paused is null and v_halted is null and not v_many then
        -- Looked at first and locked then, because a claim that holds a range must not wait for a limit key.
        select r.ctid as tid, r.queue, r.priority, r.tenant, r.lane, r.batch, r.lo, r.hi,
            r.attempt + r.failures + r.crashes + r.suspect::int4 as past,
            exists (select from headrace.ready n where n.queue = any (p_queues) and n.ctid <> r.ctid) as more
        into x from headrace.ready r where r.queue = any (p_queues) limit 1;
        if x.past = 0 and x.lane = 0 and x.hi - x.lo < p_limit and not x.more then
            delete from headrace.ready r where r.ctid = (select n.ctid from headrace.ready n where n.ctid = x.tid for update skip locked);
            if found then
                v_left := p_limit - (x.hi - x.lo + 1); v_alone := true; v_named := array[x.queue];
                r_queue := v_named; r_priority := array[x.priority]; r_tenant := array[x.tenant];
                r_batch := array[x.batch]; r_lo := array[x.lo]; r_hi := array[x.hi];
                turn_priority := r_priority; turn_queue := v_named; turn_tenant := r_tenant; turn_owed := array[0];
            else
                -- A range that another transaction has changed since this statement began is locked, but not deleted.
                v_clean := v_clean and pg_current_xact_id_if_assigned() is null;
            end if;
        end if;
    end if;

    <<search>> loop
        exit search when v_alone;
        v_queues := p_queues;
        if v_many then
            v_queues := headrace.live_queues(p_queues[1], case when v_heads then head_queue end);
        end if;
        if cardinality(v_queues) > 1 or v_halted is not null then
            v_queues := array(select distinct u.q collate "C" from unnest(v_queues) u(q) where v_halted is null or u.q <> all (v_halted));
        end if;
        if v_heads and cardinality(v_queues) = 0 then
            v_heads := false;
            continue search;
        end if;
        exit search when cardinality(v_queues) = 0 or p_tenant = any (v_paused);
        <<band>> for v_nth in 1 .. coalesce(cardinality(b_share), 1) loop
            v_share := least(v_left, coalesce(b_share[v_nth], v_left));
            v_band := v_queues;
            if b_queues[v_nth] is not null then
                v_band := array(select q from unnest(v_queues) q where q = any (string_to_array(b_queues[v_nth], ',')));
            end if;
            v_level := null;
            <<level>> while v_share > 0 and not v_stop loop
                -- 1. The next lower priority that has anything, and which queues have it.
                if v_heads then
                    select array_agg(distinct h.q), max(h.p) into v_names, v_next
                    from unnest(head_priority, head_queue) h(p, q)
                    where h.q = any (v_band) and h.p = (select max(g.p) from unnest(head_priority, head_queue) g(p, q)
                        where g.q = any (v_band) and (v_level is null or g.p < v_level)
                            and g.p between coalesce(b_lowest[v_nth], -32768) and coalesce(b_highest[v_nth], 32767));
                    v_level := coalesce(v_level - 1, b_highest[v_nth], 32767);
                    if p_probe then
                        x := headrace.next_level(v_band, v_level, coalesce(b_lowest[v_nth], (-32768)::int2), v_names, v_next);
                        v_level := x.level; v_names := x.queues;
                    else
                        v_level := v_next;
                    end if;
                elsif cardinality(v_band) = 1 then
                    v_names := v_band;
                    v_level := (select r.priority from headrace.ready r
                        where r.queue = v_band[1] and r.priority <= coalesce(v_level - 1, b_highest[v_nth], 32767)
                        order by r.queue, r.priority desc limit 1);
                else
                    select array_agg(y.q), max(y.priority) into v_names, v_level
                    from (
                        select u.q, z.priority, max(z.priority) over () as top
                        from unnest(v_band) u(q) cross join lateral (
                            select r.priority from headrace.ready r
                            where r.queue = u.q and r.priority <= coalesce(v_level - 1, b_highest[v_nth], 32767)
                            order by r.queue, r.priority desc limit 1
                        ) z
                    ) y where y.priority = y.top;
                end if;
                exit level when v_level is null or v_level < b_lowest[v_nth];

                -- 2. Its queues take turns, the one served longest ago first; at most four share one claim.
                if cardinality(v_names) > 1 then
                    v_names := array(
                        select q from unnest(v_names) q
                        left join unnest(ring_queue, ring_priority) with ordinality g(queue, priority, o) on g.queue = q and g.priority = v_level
                        order by coalesce(g.o, 0), q collate "C");
                end if;
                <<queues>> while cardinality(v_names) > 0 loop
                    v_quota := (v_share + least(cardinality(v_names), 4) - 1) / least(cardinality(v_names), 4);
                    v_more := '{}';
                    foreach v_name in array v_names loop
                        v_wanted := least(v_quota, v_share);
                        -- Where its turns stopped.
                        i := array_position(ring_queue, v_name);
                        while ring_priority[i] <> v_level loop
                            i := array_position(ring_queue, v_name, i + 1);
                        end loop;
                        h_tenant := null;
                        if v_heads then
                            select array_agg(h.t), array_agg(h.s) into h_tenant, h_seq
                            from unnest(head_priority, head_queue, head_tenant, head_lane, head_seq) h(p, q, t, l, s)
                            where h.p = v_level and h.q = v_name and h.l = 0;
                        end if;
                        if exists (select from headrace.ready r where r.queue = v_name and r.priority = v_level and r.lane <> 0) then
                            s_tenant := null;
                            if lane_lane is not null then
                                select array_agg(s.t), array_agg(s.l) into s_tenant, s_lane
                                from unnest(lane_priority, lane_queue, lane_tenant, lane_lane) s(p, q, t, l) where s.p = v_level and s.q = v_name;
                            end if;
                            x := headrace.take_limited(v_name, v_level, v_wanted, p_token, v_now, v_left = p_limit, v_clean,
                                p_tenant, p_weights -> v_name, v_paused, ring_tenant[i], ring_owed[i], s_tenant, s_lane, p_looks);
                            more := more or x.more; busy := coalesce(busy, x.busy); limited := limited or x.limited; v_opens := least(v_opens, x.opens);
                            if cardinality(x.served_tenant) > 0 then
                                served_priority := served_priority || array_fill(v_level, array[cardinality(x.served_tenant)]);
                                served_queue := served_queue || array_fill(v_name, array[cardinality(x.served_tenant)]);
                                served_tenant := served_tenant || x.served_tenant; served_lane := served_lane || x.served_lane;
                            end if;
                        elsif p_tenant is not null or v_paused is not null or h_tenant is not null then
                            x := headrace.take_each(v_name, v_level, v_wanted, greatest(1, v_wanted / 50), v_left = p_limit,
                                p_tenant, p_weights -> v_name, v_paused, ring_tenant[i], ring_owed[i], h_tenant, h_seq);
                        else
                            if owed_jobs is not null then
                                d_tenant := null; d_jobs := null;
                                for j in 1 .. cardinality(owed_jobs) loop
                                    if owed_queue[j] = v_name and owed_priority[j] = v_level then
                                        -- A queue may come twice in a claim, but what is owed is given once.
                                        d_tenant := d_tenant || owed_tenant[j]; d_jobs := d_jobs || owed_jobs[j]; owed_queue[j] := null;
                                    end if;
                                end loop;
                            end if;
                            x := headrace.take_turns(v_name, v_level, v_wanted, v_left = p_limit, p_weights -> v_name, ring_tenant[i], ring_owed[i], d_tenant, d_jobs);
                            if x.due_tenant is not null then
                                due_priority := due_priority || array_fill(v_level, array[cardinality(x.due_tenant)]);
                                due_queue := due_queue || array_fill(v_name, array[cardinality(x.due_tenant)]);
                                due_tenant := due_tenant || x.due_tenant; due_jobs := due_jobs || x.due_jobs;
                            end if;
                        end if;
                        v_stop := x.stop; v_clean := false;
                        if p_tenant is null and (x.got > 0 or more) then
                            turn_priority := turn_priority || v_level; turn_queue := turn_queue || v_name;
                            turn_tenant := turn_tenant || x.ring_tenant; turn_owed := turn_owed || x.ring_owed;
                        end if;
                        if x.got > 0 then
                            suspect := x.suspect;
                            if v_left = p_limit then
                                r_queue := array[v_name]; r_priority := array[v_level];
                            elsif not v_one or r_queue[1] <> v_name or r_priority[1] <> v_level then
                                if v_one then
                                    v_one := false;
                                    r_queue := array_fill(r_queue[1], array[cardinality(r_lo)]); r_priority := array_fill(r_priority[1], array[cardinality(r_lo)]);
                                end if;
                                r_queue := r_queue || array_fill(v_name, array[cardinality(x.n_lo)]);
                                r_priority := r_priority || array_fill(v_level, array[cardinality(x.n_lo)]);
                            end if;
                            r_attempt := headrace.join_past(r_attempt, r_lo, x.n_attempt, x.n_lo);
                            r_failures := headrace.join_past(r_failures, r_lo, x.n_failures, x.n_lo);
                            r_crashes := headrace.join_past(r_crashes, r_lo, x.n_crashes, x.n_lo);
                            r_tenant := r_tenant || x.n_tenant; r_batch := r_batch || x.n_batch; r_lo := r_lo || x.n_lo; r_hi := r_hi || x.n_hi;
                            if v_name <> all (v_named) then v_named := v_named || v_name; end if;
                            v_left := v_left - x.got; v_share := v_share - x.got;
                            if x.got >= v_quota then v_more := v_more || v_name; end if;
                            if suspect then v_stop := true; end if;
                        end if;
                        exit level when v_share <= 0 or v_stop;
                    end loop;
                    exit queues when cardinality(v_names) = 1;
                    v_names := v_more;
                end loop;
            end loop;
            exit search when v_left <= 0 or v_stop;
        end loop;
        exit search when not v_heads or v_left < p_limit;
        v_heads := false;
    end loop;

    wasted := pg_stat_get_xact_tuples_returned('headrace.ready_lane'::regclass) - v_seen - 6 * cardinality(r_lo);
    spent := extract(epoch from clock_timestamp() - v_begun);
    opens := v_opens - v_now;
    if v_left = p_limit then
        r_batch := null; held := exists (select from headrace.lease l where l.token = p_token);
        return next;
        return;
    end if;
    busy := null;
    -- A claim may take fewer jobs than it was asked for and leave some: behind a suspect, or of tenants that other claims
    -- are taking from.
    more := not v_alone and (v_left = 0 or v_many or head_seq is not null or wasted > p_many
        or exists (select from headrace.ready r where r.queue = any (p_queues)));

    v_now := coalesce(p_now, clock_timestamp());
    if r_attempt is not null then
        r_attempt := array(select a + 1 from unnest(r_attempt) with ordinality u(a, o) order by o);
        r_failures := case when 0 = all (r_failures) then null else r_failures end;
        r_crashes := case when 0 = all (r_crashes) then null else r_crashes end;
    end if;
    insert into headrace.lease (token, worker, until, claimed_at, suspect, unsettled, limited, queues, r_batch, r_lo, r_hi,
        r_attempt, r_failures, r_crashes, r_queue)
    values (p_token, p_worker, v_now + p_ttl, v_now, suspect, p_limit - v_left, limited, v_named, r_batch, r_lo, r_hi,
        r_attempt, r_failures, r_crashes,
        case when cardinality(v_named) > 1
            then array(select array_position(v_named, q)::int2 from unnest(r_queue) with ordinality u(q, o) order by o) end);
    if cardinality(v_named) = 1 then
        insert into headrace.tally (ready, running, queue) values (v_left - p_limit, p_limit - v_left, v_named[1]);
    else
        insert into headrace.tally (ready, running, queue)
        select -sum(u.hi - u.lo + 1), sum(u.hi - u.lo + 1), u.queue from unnest(r_queue, r_lo, r_hi) u(queue, lo, hi) group by u.queue;
    end if;

    if head_seq is not null or wasted > p_many then
        -- The client needs the head of each lane.
        if v_one then
            r_queue := array_fill(r_queue[1], array[cardinality(r_lo)]); r_priority := array_fill(r_priority[1], array[cardinality(r_lo)]);
        end if;
        select array_agg(coalesce(j.lane, 0) order by u.o), array_agg(j.seq order by u.o) into r_lane, r_seq
        from unnest(r_batch, r_lo) with ordinality u(batch, lo, o) join headrace.job j on j.batch = u.batch and j.ord = u.lo;
    end if;
    if p_limit - v_left = 1 then
        r_hi := null;
        select array[j.task], array[case when octet_length(j.payload) <= 2000 then j.payload end],
            case when octet_length(j.payload) > 2000 then j.payload end, array[j.enqueued_at],
            case when j.options is not null then array[j.options] end
        into tasks, payloads, large, r_at, options
        from headrace.job j where j.batch = r_batch[1] and j.ord = r_lo[1];
        return next;
        return;
    end if;
    v_begins := r_lo; v_ends := r_hi; v_batches := r_batch;
    if r_lo = r_hi then r_hi := null; end if;
    for x in
        select p.page, array_agg(p.task) as tasks,
            array_agg(case when octet_length(p.payload) <= 2000 then p.payload end) as payloads, array_agg(p.enqueued_at) filter (where p.ord = p.lo) as r_at,
            case when count(p.options) > 0 then array_agg(p.options) end as options
        from (
            select (u.base + j.ord - u.lo) / 128 as page, u.lo, j.*
            from (
                select v.*, sum(v.hi - v.lo + 1) over (order by v.o rows unbounded preceding) - (v.hi - v.lo + 1) as base
                from unnest(v_batches, v_begins, v_ends) with ordinality v(batch, lo, hi, o)
            ) u
            cross join lateral (
                select b.ord, b.enqueued_at, b.task, b.payload, b.options from headrace.job b
                where b.batch = u.batch and b.ord between u.lo and u.hi
            ) j
            order by 1, u.base + j.ord - u.lo
        ) p group by p.page order by p.page
    loop
        tasks := x.tasks; payloads := x.payloads; options := x.options; r_at := x.r_at;
        v_large := v_large or array_position(x.payloads, null) is not null;
        return next;
        r_queue := null; r_priority := null; r_tenant := null; r_lane := null; r_seq := null; r_batch := null; r_lo := null; r_hi := null;
        r_attempt := null; r_failures := null; r_crashes := null; turn_priority := null; turn_queue := null; turn_tenant := null;
        turn_owed := null; served_priority := null; served_queue := null; served_tenant := null; served_lane := null;
        due_priority := null; due_queue := null; due_tenant := null; due_jobs := null;
    end loop;
    if not v_large then return; end if;

    -- The length of a payload is part of its reference: here nothing large is read.
    if p_bytes is not null then
        select count(*) filter (where t.upto <= p_bytes) into v_fit
        from (
            select sum(octet_length(b.payload)) over (order by u.o, b.ord rows unbounded preceding) as upto
            from unnest(v_batches, v_begins, v_ends) with ordinality u(batch, lo, hi, o)
            join headrace.job b on b.batch = u.batch and b.ord between u.lo and u.hi
        ) t;
        if v_fit < p_limit - v_left then
            raise exception 'the jobs of this claim are together larger than % bytes, it is made again for fewer jobs', p_bytes
                using errcode = 'HR001', detail = greatest(1, v_fit);
        end if;
    end if;
    tasks := null; payloads := null; options := null; r_at := null;
    for large in
        select b.payload
        from unnest(v_batches, v_begins, v_ends) with ordinality u(batch, lo, hi, o)
        join headrace.job b on b.batch = u.batch and b.ord between u.lo and u.hi
        where octet_length(b.payload) > 2000 order by u.o, b.ord
    loop
        return next;
    end loop;
end $$;
