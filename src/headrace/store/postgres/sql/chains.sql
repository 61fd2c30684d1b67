-- Chains: jobs of one batch and lane, each of which waits for the job before it to be done. A chain lo..hi is one row of `blocked`. When the
-- job at lo - 1 is done, lo becomes ready, and the row gets shorter. Its column `gate` names no gate and no job.

-- chain_of: what stands in `gate` of the chains of a batch: its last place, so that `is_linked` finds them. No job is there, because a
-- batch with so many jobs has no chains.
create or replace function headrace.chain_of(p_batch uuid) returns uuid language sql immutable parallel safe strict as $$
    select (left(p_batch::text, 32) || 'ffff')::uuid
$$;

-- chains_at: the batch whose chains have this id in `gate`; null: none. A look for what waits for a gate or a job leaves these out.
create or replace function headrace.chains_at(p_id uuid) returns uuid language sql immutable parallel safe strict as $$
    select case when right(p_id::text, 4) = 'ffff' then (left(p_id::text, 32) || '0000')::uuid end
$$;

-- waits_for: what a blocked job at place p_ord waits for. p_gate: the column of its row.
create or replace function headrace.waits_for(p_gate uuid, p_batch uuid, p_ord int4) returns uuid
language plpgsql immutable parallel safe strict as $$
begin
    return case when p_gate = headrace.chain_of(p_batch) then headrace.job_id(p_batch, p_ord - 1) else p_gate end;
end $$;

-- chain_goes_on: whether a chain waits for this job. The chains of a batch do not overlap, so the one with the next job ends first.
create or replace function headrace.chain_goes_on(p_batch uuid, p_ord int4) returns bool language plpgsql stable as $$
begin
    return coalesce((
        select b.lo = p_ord + 1 from headrace.blocked b
        where b.gate = headrace.chain_of(p_batch) and b.batch = p_batch and b.hi > p_ord order by b.hi limit 1), false);
end $$;

-- go_on: these jobs have ended, the last of each range at p_hi. Makes the next job of their chains ready.
--
--   p_state   1 done, 2 dead, 3 cancelled
--   p_toll    leave a toll for what was not moved: what another transaction has locked or changed, what there is more of than one
--             call should move, and what is to be cancelled
--
-- Locks and moves in one statement. A row that another transaction has changed since this statement began is locked, but not found
-- by the update, so it is among those that were not moved. Returns how many jobs it moved, their queues, the jobs with a toll, and
-- whether other jobs than those of chains may wait for jobs of these batches.
create or replace function headrace.go_on(p_batch uuid[], p_hi int4[], p_state int2[], p_now timestamptz, p_toll bool default true,
    out moved int4, out queues text[], out follow uuid[], out others bool
) language plpgsql as $$
begin
    with ends as materialized (
        select u.batch, u.hi, u.state, headrace.chain_of(u.batch) as chain from unnest(p_batch, p_hi, p_state) u(batch, hi, state)
    ), held as materialized (
        select c.tid from ends e cross join lateral (
            -- As in `chain_goes_on`.
            select b.ctid as tid, b.lo from headrace.blocked b
            where b.gate = e.chain and b.batch = e.batch and b.hi > e.hi order by b.hi limit 1 for update skip locked
        ) c where e.state = 1 and c.lo = e.hi + 1 limit 1000
    ), shorter as (
        -- No index has `lo`, so this is a HOT update.
        update headrace.blocked b set lo = b.lo + 1 where b.ctid = any (array(select h.tid from held h)) and b.lo < b.hi
        returning b.batch, b.lo - 1 as ord, b.seq, b.lane, b.priority, b.queue, b.tenant, b.limits
    ), gone as (
        delete from headrace.blocked b where b.ctid = any (array(select h.tid from held h)) and b.lo = b.hi
        returning b.batch, b.lo as ord, b.seq, b.lane, b.priority, b.queue, b.tenant, b.limits
    ), links as materialized (
        table shorter union all table gone
    ), now_ready as (
        insert into headrace.ready (seq, lane, batch, lo, hi, priority, attempt, failures, crashes, suspect, queue, tenant, limits)
        select l.seq, l.lane, l.batch, l.ord, l.ord, l.priority, 0, 0, 0, false, l.queue, l.tenant, l.limits from links l
    ), told as (
        insert into headrace.tally (blocked, ready, queue) select -count(*), count(*), l.queue from links l group by l.queue
    ), tolled as (
        insert into headrace.toll (gate, done)
        select headrace.job_id(e.batch, e.hi), (e.state = 1)::int4 from ends e
        where p_toll and e.state <> 2 and (e.batch, e.hi + 1) not in (select l.batch, l.ord from links l) and headrace.chain_goes_on(e.batch, e.hi)
        returning gate
    )
    select (select count(*) from links), (select array_agg(distinct l.queue) from links l), (select array_agg(t.gate) from tolled t),
        exists (select from ends e where exists (select from headrace.blocked b where b.gate >= e.batch and b.gate < e.chain)
            or (e.hi = 65535 and exists (select from headrace.blocked b where b.gate = e.chain and b.batch <> e.batch)))
    into moved, queues, follow, others;
end $$;
