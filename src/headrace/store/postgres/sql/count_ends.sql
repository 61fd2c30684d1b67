-- is_linked: whether any of the jobs of these batches may be a member of a gate (1), or may be waited for (2), or both (3); else 0. It
-- costs two looks however many batches there are, because most jobs are neither.
create or replace function headrace.is_linked(p_batch uuid[]) returns int4 language plpgsql as $$
declare
    v_first uuid := p_batch[1];
    v_last  uuid := p_batch[1];
begin
    if cardinality(p_batch) > 1 then
        select (select b from unnest(p_batch) b order by b limit 1), (select b from unnest(p_batch) b order by b desc limit 1)
        into v_first, v_last;
    end if;
    return exists (select from headrace.edge e where e.batch >= v_first and e.batch <= v_last)::int4
        + 2 * exists (select from headrace.blocked b where b.gate >= v_first and b.gate <= headrace.job_id(v_last, 65535))::int4;
end $$;

-- count_run: the same as `count_members` for one run of jobs, without an aggregate, which costs more than the rest. A gate that has
-- several members among them gets a toll for each.
create or replace function headrace.count_run(p_batch uuid, p_lo int4, p_hi int4, p_state int2) returns uuid[] language plpgsql as $$
declare
    v_ids uuid[];
    v_id  uuid;
begin
    for v_id in
        insert into headrace.toll (gate, done, dead, cancelled)
        select m.gate, case p_state when 1 then m.n else 0 end, case p_state when 2 then m.n else 0 end,
            case p_state when 3 then m.n else 0 end
        from (
            select e.gate, 1 as n from headrace.edge e where e.batch = p_batch and not e.many and e.hi >= p_lo and e.hi <= p_hi
            union all
            select e.gate, least(e.hi, p_hi) - greatest(e.lo, p_lo) + 1 from headrace.edge e
            where e.batch = p_batch and e.many and e.hi >= p_lo and e.lo <= p_hi
        ) m
        returning gate
    loop
        v_ids := v_ids || v_id;
    end loop;
    return v_ids;
end $$;

-- count_members: count these jobs on the gates that they are members of, in one toll for each gate. Returns these gates.
--
--   p_state   1 done, 2 dead, 3 cancelled
--   p_sign    1, or -1 for what does not hold any more; null: all 1
create or replace function headrace.count_members(p_batch uuid[], p_lo int4[], p_hi int4[], p_state int2[], p_sign int4[] default null)
returns uuid[] language plpgsql as $$
declare
    v_ids uuid[];
begin
    with ends as materialized (
        select u.batch, u.lo, u.hi, u.state, coalesce(u.sign, 1) as sign
        from unnest(p_batch, p_lo, p_hi, p_state, p_sign) u(batch, lo, hi, state, sign)
    ), members as (
        select e.gate, u.state, u.sign from ends u
        join headrace.edge e on e.batch = u.batch and not e.many and e.hi >= u.lo and e.hi <= u.hi
        union all
        select e.gate, u.state, u.sign * (least(e.hi, u.hi) - greatest(e.lo, u.lo) + 1) from ends u
        join headrace.edge e on e.batch = u.batch and e.many and e.hi >= u.lo and e.lo <= u.hi
    ), tolled as (
        insert into headrace.toll (gate, done, dead, cancelled)
        select m.gate, coalesce(sum(m.sign) filter (where m.state = 1), 0), coalesce(sum(m.sign) filter (where m.state = 2), 0),
            coalesce(sum(m.sign) filter (where m.state = 3), 0)
        from members m group by m.gate returning gate
    )
    select array_agg(t.gate) into v_ids from tolled t;
    return v_ids;
end $$;

-- mark_waits: leave a toll for each of these jobs that has ended and that others wait for, if it matters to them. Returns these jobs.
-- `follow` does what is to be done.
create or replace function headrace.mark_waits(p_batch uuid[], p_lo int4[], p_hi int4[], p_state int2[])
returns uuid[] language plpgsql as $$
declare
    v_ids uuid[];
begin
    with marked as (
        insert into headrace.toll (gate, done)
        select distinct b.gate, (u.state = 1)::int4
        from unnest(p_batch, p_lo, p_hi, p_state) u(batch, lo, hi, state)
        join headrace.blocked b on b.gate >= headrace.job_id(u.batch, u.lo) and b.gate <= headrace.job_id(u.batch, u.hi)
        where headrace.verdict_of(b.needs, u.state) <> 0
        union
        select headrace.job_id(u.batch, u.hi), (u.state = 1)::int4
        from unnest(p_batch, p_hi, p_state) u(batch, hi, state)
        where u.state in (1, 3) and headrace.chain_goes_on(u.batch, u.hi)
        returning gate
    )
    select array_agg(m.gate) into v_ids from marked m;
    return v_ids;
end $$;

-- count_end: a single job has ended in this state, other than by a settlement. p_was: it had ended before, in this state; null:
-- it had not.
create or replace function headrace.count_end(p_batch uuid, p_ord int4, p_state int2, p_was int2 default null)
returns void language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if headrace.is_linked(array[p_batch]) > 0 then
        perform headrace.count_members(array[p_batch, p_batch], array[p_ord, p_ord], array[p_ord, p_ord], array[p_state, p_was],
            array[1, -1]);
        perform headrace.mark_waits(array[p_batch], array[p_ord], array[p_ord], array[p_state]);
    end if;
end $$;

-- count_again: a job that had ended in this state has not ended any more.
create or replace function headrace.count_again(p_batch uuid, p_ord int4, p_was int2) returns void language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    if headrace.is_linked(array[p_batch]) > 0 then
        perform headrace.count_members(array[p_batch], array[p_ord], array[p_ord], array[p_was], array[-1]);
    end if;
end $$;

-- count_ends: these jobs were settled. Counts them on their gates, and releases jobs that wait for one of them.
--
-- A link of a chain is released here, in the transaction of the settlement. What another transaction has locked, what there is more
-- of than one call should move, and what is to be cancelled is left to `follow`. p_linked: what `is_linked` says of them. Returns what
-- `follow` has to look at, and the queues of released jobs.
create or replace function headrace.count_ends(p_linked int4, p_batch uuid[], p_lo int4[], p_hi int4[], p_state int2[], p_now timestamptz,
    out follow uuid[], out queues text[]
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    c      record;
    v_tid  tid[];
    v_left uuid[];
begin
    if p_linked <> 2 then
        follow := headrace.count_members(p_batch, p_lo, p_hi, p_state);
    end if;
    if p_linked = 1 then return; end if;
    c := headrace.go_on(p_batch, p_hi, p_state, p_now);
    queues := c.queues; follow := follow || c.follow;
    if not c.others then return; end if;
    with waits as materialized (
        select b.ctid as tid, b.gate, (u.state = 1)::int4 as done, headrace.verdict_of(b.needs, u.state) as says
        from unnest(p_batch, p_lo, p_hi, p_state) u(batch, lo, hi, state)
        join headrace.blocked b on b.gate >= headrace.job_id(u.batch, u.lo) and b.gate <= headrace.job_id(u.batch, u.hi)
    ), taken as materialized (
        select b.ctid as tid from headrace.blocked b
        where b.ctid = any (array(select w.tid from waits w where w.says = 1 limit 1000)) for update skip locked
    ), marked as (
        insert into headrace.toll (gate, done)
        select distinct w.gate, w.done from waits w where w.says <> 0 and w.tid not in (select t.tid from taken t)
        returning gate
    )
    select (select array_agg(t.tid) from taken t), (select array_agg(m.gate) from marked m) into v_tid, v_left;
    if v_tid is not null then
        queues := queues || (select r.queues from headrace.release(v_tid, p_now) r);
    end if;
    follow := follow || v_left;
end $$;

-- release: move runs that this transaction has locked from blocked to ready, or to scheduled if they are due later. Of a
-- suspended job all rows are given, and it becomes ready.
create or replace function headrace.release(p_tid tid[], p_now timestamptz, out moved int4, out queues text[])
language plpgsql as $$
begin
    with gone as (
        delete from headrace.blocked b where b.ctid = any (p_tid) returning b.*
    ), runs as materialized (
        select distinct on (g.batch, g.hi) g.*,
            case when g.attempt = 0 then nullif(greatest(coalesce(g.due_at, p_now + g.delay), p_now), p_now) end as later
        from gone g order by g.batch, g.hi
    ), now_ready as (
        insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select r.seq, r.lane, r.batch, r.lo, r.hi, r.priority, r.attempt, r.failures, r.crashes, r.suspect, r.queue, r.tenant, r.note, r.limits
        from runs r where r.later is null
    ), put_off as (
        insert into headrace.scheduled
            (run_at, seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select r.later, r.seq, r.lane, r.batch, r.lo, r.hi, r.priority, r.attempt, r.failures, r.crashes, r.suspect, r.queue, r.tenant,
            r.note, r.limits
        from runs r where r.later is not null
    ), told as (
        insert into headrace.tally (blocked, ready, scheduled, queue)
        select -sum(r.hi - r.lo + 1), coalesce(sum(r.hi - r.lo + 1) filter (where r.later is null), 0),
            coalesce(sum(r.hi - r.lo + 1) filter (where r.later is not null), 0), r.queue
        from runs r group by r.queue
    )
    select coalesce(sum(r.hi - r.lo + 1), 0), array_agg(distinct r.queue) into moved, queues from runs r;
end $$;
