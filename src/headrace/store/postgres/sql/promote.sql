-- promote: move up to p_limit due jobs from scheduled to ready, the earliest first, each to its old place; also jobs that are
-- suspended until a time at the latest.
--
-- Safe for any number of callers at once: rows are locked in one statement and moved in the next.
-- Returns how many jobs moved, in which queues, when the next is due (null: none is scheduled), and whether a lease has
-- expired.
create or replace function headrace.promote(p_limit int4, p_now timestamptz default null,
    out moved int4, out queues text[], out next_due interval, out expired bool
) language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_tid  tid[];
    v_part tid;
    v_take int4;
    v_woken record;
begin
    with due as materialized (
        select s.ctid as tid, s.run_at, s.seq, s.hi, s.hi - s.lo + 1 as len from headrace.scheduled s
        where s.run_at <= v_now order by s.run_at limit p_limit for update skip locked
    ), counted as (
        select d.*, sum(d.len) over (order by d.run_at, d.seq, d.hi) as upto from due d
    )
    select array_agg(c.tid) filter (where c.upto <= p_limit),
        min(c.tid::text) filter (where c.upto > p_limit)::tid, min(p_limit - (c.upto - c.len)) filter (where c.upto > p_limit)
    into v_tid, v_part, v_take
    from counted c where c.upto - c.len < p_limit;

    with whole as (
        delete from headrace.scheduled s where s.ctid = any (v_tid) returning s.*
    ), front as (
        update headrace.scheduled s set lo = s.lo + v_take where s.ctid = v_part returning s.*
    ), due as materialized (
        select w.seq, w.lane, w.batch, w.lo, w.hi, w.priority, w.attempt, w.failures, w.crashes, w.suspect, w.queue, w.tenant, w.note,
            w.limits
        from whole w
        union all
        select f.seq, f.lane, f.batch, f.lo - v_take, f.lo - 1, f.priority, f.attempt, f.failures, f.crashes, f.suspect, f.queue,
            f.tenant, f.note, f.limits
        from front f
    ), now_ready as (
        insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, note, limits)
        select * from due
    ), told as (
        insert into headrace.tally (scheduled, ready, queue)
        select -sum(d.hi - d.lo + 1), sum(d.hi - d.lo + 1), d.queue from due d group by d.queue
    )
    select coalesce(sum(d.hi - d.lo + 1), 0), array_agg(distinct d.queue) into moved, queues from due d;

    if exists (select from headrace.blocked b where b.run_at <= v_now) then
        select * into v_woken from headrace.wake_due(p_limit - moved, v_now);
        moved := moved + v_woken.moved; queues := queues || v_woken.queues;
    end if;
    expired := exists (select from headrace.lease l where l.until <= v_now);
    select greatest(n.run_at - v_now, interval '0') into next_due
    from (
        (select s.run_at from headrace.scheduled s order by s.run_at limit 1)
        union all
        (select b.run_at from headrace.blocked b where b.run_at is not null order by b.run_at limit 1)
    ) n order by n.run_at limit 1;
end $$;

-- wake_due: make up to p_limit suspended jobs ready whose time has come. As in `lock_waiting`, the row with the lowest gate stands for
-- a job. Jobs whose row is locked are left out.
create or replace function headrace.wake_due(p_limit int4, p_now timestamptz, out moved int4, out queues text[]) language plpgsql as $$
declare
    v_first tid[];
begin
    v_first := array(
        select (select x.ctid from headrace.blocked x where x.batch = b.batch and x.hi = b.hi order by x.gate limit 1)
        from headrace.blocked b where b.run_at <= p_now order by b.run_at limit p_limit);
    v_first := array(select b.ctid from headrace.blocked b where b.ctid = any (v_first) for update skip locked);
    select r.moved, r.queues into moved, queues from headrace.release(array(
        select x.ctid from headrace.blocked b join headrace.blocked x on x.batch = b.batch and x.hi = b.hi where b.ctid = any (v_first)), p_now) r;
end $$;
