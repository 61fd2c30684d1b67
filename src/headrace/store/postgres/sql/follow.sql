-- follow: do what follows from tolls: add them up, release or cancel the jobs that wait, tell other gates.
--
--   p_ids     gates, and jobs that have ended; null: whatever has tolls
--   p_limit   runs to release, or jobs to cancel, per gate
--   p_notes   of jobs that are cancelled: because what they waited for was cancelled, or because it is done. An id of zeros
--             stands for the gate
--   p_gap     leave a gate alone that was folded within this time, unless it is over; null, or with the clock of a test: whenever
--
-- Goes on with what follows from that, up to a hundred gates in all. No lock is waited for, but by a call for whatever has tolls:
-- that waits a moment for one gate. Commits asynchronously, because a crash undoes it together with the removal of the tolls.
-- Returns how much it moved, the queues of released jobs, what is left to do, and which gates and jobs were locked.
create or replace function headrace.follow(p_ids uuid[], p_limit int4, p_notes text[], p_now timestamptz default null,
    p_gap interval default null, out moved int4, out queues text[], out todo uuid[], out busy uuid[]
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_id   uuid;
    v_last uuid := '00000000-0000-0000-0000-000000000000';
    f      record;
begin
    perform set_config('synchronous_commit', 'off', true);
    moved := 0; busy := '{}'; todo := coalesce(p_ids, '{}');
    for i in 1 .. 100 loop
        exit when moved >= p_limit;
        v_id := todo[1]; todo := todo[2:];
        if v_id is null then
            exit when p_ids is not null;
            select t.gate into v_id from headrace.toll t where t.gate > v_last order by t.gate limit 1;
            exit when v_id is null;
            v_last := v_id;
        end if;
        if p_gap is not null and p_now is null then
            -- `changed_at` is also the time at which it was made, sealed or signalled. A gate that is over is never left alone, because
            -- nothing more will be counted on it and jobs may wait for it.
            if exists (select from headrace.gate g where g.id = v_id and g.changed_at > v_now - p_gap and not g.signalled
                    and g.done + g.dead + g.cancelled > 0)
                and not exists (select from headrace.gate_now(v_id) n where n.sealed and n.done + n.dead + n.cancelled = n.size)
            then
                busy := busy || v_id;
                continue;
            end if;
        end if;
        select * into f from headrace.fold_gate(v_id, p_limit, p_notes, v_now, false);
        moved := moved + f.moved; queues := queues || f.queues;
        if f.busy then
            busy := busy || v_id;
        else
            todo := todo || f.todo;
        end if;
    end loop;
    if p_ids is null and busy <> '{}' and moved = 0 then
        -- Most likely another call folds it, which takes a moment.
        select * into f from headrace.fold_gate(busy[1], p_limit, p_notes, v_now, true);
        moved := f.moved; queues := queues || f.queues;
    end if;
end $$;

-- fold_gate: the same for one gate, or for one job that has ended.
--
-- The row of the gate is locked first. The tolls are added up in the next statement, so that those of all transactions that held the
-- key of the row are seen: they have added members, or jobs that wait. p_wait: wait for that lock, 50 ms at most.
create or replace function headrace.fold_gate(p_id uuid, p_limit int4, p_notes text[], p_now timestamptz, p_wait bool,
    out moved int4, out queues text[], out todo uuid[], out busy bool
) language plpgsql as $$
declare
    g         headrace.gate;
    t         record;
    m         record;
    v_state   text;
    v_told    int2;
    v_release int2[];
    v_cancel  int2[];
    v_tids    tid[];
begin
    moved := 0; busy := false;
    if headrace.is_gate(p_id) then
        if p_wait then
            begin
                perform set_config('lock_timeout', '50ms', true);
                perform from headrace.gate x where x.id = p_id for update;
            exception when lock_not_available then null;
            end;
            perform set_config('lock_timeout', '0', true);
        end if;
        select * into g from headrace.gate x where x.id = p_id for update skip locked;
        if not found and exists (select from headrace.gate x where x.id = p_id) then
            busy := true;
            return;
        end if;
        with gone as (delete from headrace.toll x where x.gate = p_id returning x.*)
        select count(*) as n, coalesce(sum(x.size), 0) as size, coalesce(sum(x.done), 0) as done, coalesce(sum(x.dead), 0) as dead,
            coalesce(sum(x.cancelled), 0) as cancelled, bool_or(x.size <> 0 or x.done <> 0 or x.dead <> 0 or x.cancelled <> 0) as counts
        into t from gone x;
        if g.id is null then
            -- A gate that does not exist is cancelled to those that wait for it.
            g.size := 1; g.done := 0; g.dead := 0; g.cancelled := 1; g.sealed := true;
        else
            g.size := g.size + t.size; g.done := g.done + t.done; g.dead := g.dead + t.dead; g.cancelled := g.cancelled + t.cancelled;
            v_told := headrace.as_member(g.size, g.done, g.dead, g.cancelled, g.sealed);
            if t.counts or v_told <> g.told then
                update headrace.gate x set size = g.size, done = g.done, dead = g.dead, cancelled = g.cancelled, told = v_told,
                    changed_at = case when t.counts then p_now else x.changed_at end
                where x.id = p_id;
            end if;
            if v_told <> g.told then
                todo := headrace.count_members(array[p_id, p_id], array[0, 0], array[0, 0], array[v_told, g.told], array[1, -1]);
            end if;
        end if;
    else
        with gone as (
            delete from headrace.toll x
            where x.ctid = any (array(select k.ctid from headrace.toll k where k.gate = p_id for update skip locked)) returning x.*
        )
        select count(*) as n, coalesce(max(x.done), 0) as done into t from gone x;
        v_state := (select n.state from headrace.state_now(headrace.id_batch(p_id), headrace.id_ord(p_id)) n);
        if v_state is null then
            -- Its retention is over, or it was deleted. What it was when it ended may have been written down.
            v_state := case when t.done > 0 then 'done' else 'cancelled' end;
        end if;
        g.size := 1; g.done := (v_state = 'done')::int4; g.dead := (v_state = 'dead')::int4; g.cancelled := (v_state = 'cancelled')::int4;
        g.sealed := true;
    end if;

    select array_agg(n.needs) filter (where n.verdict = 1), coalesce(array_agg(n.needs) filter (where n.verdict = 2), '{}')
    into v_release, v_cancel
    from (select x as needs, headrace.verdict(x, g.size, g.done, g.dead, g.cancelled, g.sealed) as verdict
        from unnest(array[1, 2, 3]::int2[]) x) n;
    v_tids := headrace.lock_waiting(p_id, coalesce(v_release, '{}'), v_cancel, p_limit);
    if v_tids is not null then
        select * into m from headrace.release(v_tids, p_now);
        moved := m.moved; queues := m.queues;
    end if;
    if v_state = 'done' then
        select * into m from headrace.go_on(array[headrace.id_batch(p_id)], array[headrace.id_ord(p_id)], array[1::int2], p_now, false);
        moved := moved + m.moved; queues := queues || m.queues;
    end if;
    if v_cancel <> '{}' then
        select * into m from headrace.cancel_waiting(p_id, v_cancel, p_limit, array[p_notes[1], null, p_notes[2]], p_now);
        moved := moved + m.cancelled; todo := todo || m.todo;
    end if;
    if headrace.waits_on(p_id, v_release || v_cancel) then
        -- More than one call should move, or locked.
        insert into headrace.toll (gate, done) values (p_id, case when headrace.is_gate(p_id) then 0 else t.done end);
        busy := moved = 0;
        todo := todo || p_id;
    end if;
    if t.n > 0 and not busy then
        moved := greatest(moved, 1);
    end if;
end $$;

-- waits_on: whether a job waits for this gate or job with one of these needs.
create or replace function headrace.waits_on(p_id uuid, p_needs int2[]) returns bool language plpgsql as $$
declare
    v_own uuid := headrace.chains_at(p_id);
begin
    return exists (select from headrace.blocked b where b.gate = p_id and b.needs = any (p_needs) and b.batch is distinct from v_own)
        or (1 = any (p_needs) and not headrace.is_gate(p_id)
            and headrace.chain_goes_on(headrace.id_batch(p_id), headrace.id_ord(p_id)));
end $$;

-- lock_waiting: lock up to p_limit runs of jobs that wait for this gate and are to be released. Rows that are locked are left out.
--
-- A suspended job has several rows. The one with the lowest gate stands for the job: whatever takes the job locks that one first,
-- and then has the others. A suspended job goes on whatever the verdict.
create or replace function headrace.lock_waiting(p_id uuid, p_release int2[], p_cancel int2[], p_limit int4) returns tid[]
language plpgsql as $$
declare
    v_own   uuid := headrace.chains_at(p_id);
    v_tids  tid[];
    v_first tid[];
begin
    select array_agg(l.tid) into v_tids from (
        select b.ctid as tid from headrace.blocked b
        where b.gate = p_id and b.attempt = 0 and b.needs = any (p_release) and b.batch is distinct from v_own
        order by b.batch, b.hi limit p_limit for update skip locked
    ) l;
    select array_agg(f.tid) into v_first from (
        select (select x.ctid from headrace.blocked x where x.batch = b.batch and x.hi = b.hi order by x.gate limit 1) as tid
        from headrace.blocked b
        where b.gate = p_id and b.attempt > 0 and b.needs = any (p_release || p_cancel)
        order by b.batch, b.hi limit p_limit
    ) f;
    if v_first is not null then
        v_first := array(select b.ctid from headrace.blocked b where b.ctid = any (v_first) for update skip locked);
        v_tids := v_tids || array(
            select x.ctid from headrace.blocked b join headrace.blocked x on x.batch = b.batch and x.hi = b.hi where b.ctid = any (v_first));
    end if;
    return nullif(v_tids, '{}');
end $$;

-- cancel_waiting: cancel up to p_limit jobs that wait for this gate or job with one of these needs and never ran, and with the first job
-- of a chain all of them. p_notes: by need.
create or replace function headrace.cancel_waiting(p_id uuid, p_needs int2[], p_limit int4, p_notes text[], p_now timestamptz,
    out cancelled int4, out todo uuid[]
) language plpgsql as $$
declare
    v_own   uuid := headrace.chains_at(p_id);
    v_after uuid := case when not headrace.is_gate(p_id) and 1 = any (p_needs) then headrace.id_batch(p_id) end;
    v_tid   tid[];
    v_part  tid;
    v_take  int4;
    v_batch uuid[]; v_lo int4[]; v_hi int4[];
begin
    with waiting as materialized (
        select b.ctid as tid, b.batch, b.hi, b.hi - b.lo + 1 as len from headrace.blocked b
        where b.gate = p_id and b.attempt = 0 and b.needs = any (p_needs) and b.batch is distinct from v_own
        order by b.batch, b.hi limit p_limit for update skip locked
    ), chain as materialized (
        select b.ctid as tid, b.batch, b.hi, b.hi - b.lo + 1 as len from headrace.blocked b
        where b.gate = headrace.chain_of(v_after) and b.batch = v_after and b.hi > headrace.id_ord(p_id) and b.lo = headrace.id_ord(p_id) + 1
        for update skip locked
    ), counted as (
        select f.*, sum(f.len) over (order by f.batch, f.hi) as upto from (table waiting union all table chain) f
    )
    select array_agg(c.tid) filter (where c.upto <= p_limit), min(c.tid::text) filter (where c.upto > p_limit)::tid,
        min(p_limit - (c.upto - c.len)) filter (where c.upto > p_limit)
    into v_tid, v_part, v_take
    from counted c where c.upto - c.len < p_limit;

    with whole as (
        delete from headrace.blocked b where b.ctid = any (v_tid) returning b.*
    ), front as (
        update headrace.blocked b set lo = b.lo + v_take where b.ctid = v_part returning b.*
    ), runs as materialized (
        select w.gate, w.batch, w.lo, w.hi, w.needs, w.queue from whole w
        union all
        select f.gate, f.batch, f.lo - v_take, f.lo - 1, f.needs, f.queue from front f
    ), ended as (
        insert into headrace.ending (batch, finished_at, ord, state, attempt, note)
        select r.batch, p_now, o, 3, 0, replace(p_notes[r.needs], '00000000-0000-0000-0000-000000000000',
            headrace.waits_for(r.gate, r.batch, o)::text)
        from runs r cross join lateral generate_series(r.lo, r.hi) o
    ), told as (
        insert into headrace.tally (blocked, queue) select -sum(r.hi - r.lo + 1), r.queue from runs r group by r.queue
    )
    select coalesce(sum(r.hi - r.lo + 1), 0), array_agg(r.batch), array_agg(r.lo), array_agg(r.hi)
    into cancelled, v_batch, v_lo, v_hi from runs r;
    if v_batch is not null then
        todo := headrace.count_members(v_batch, v_lo, v_hi, array_fill(3::int2, array[cardinality(v_lo)]))
            || headrace.mark_waits(v_batch, v_lo, v_hi, array_fill(3::int2, array[cardinality(v_lo)]));
    end if;
end $$;
