-- job_now: every job with its state as it is now, derived from where it is stored. `get` and `find` read it.
-- jobs: the same for users of SQL. It is documented and stable.
create or replace view headrace.job_now as
select j.batch, j.ord, j.seq, j.task, j.queue, j.priority, coalesce(j.tenant, '') as tenant, j.limits, j.payload, j.options, j.enqueued_at,
    case
        when e.batch is not null then case e.state when 1 then 'done' when 2 then 'dead' else 'cancelled' end
        when r.batch is not null then 'ready'
        when s.batch is not null then 'scheduled'
        when b.batch is not null then 'blocked'
        else 'running'
    end as state,
    coalesce(e.attempt, r.attempt, s.attempt, b.attempt, l.attempt) as attempt,
    coalesce(e.failures, r.failures, s.failures, b.failures, l.failures, 0) as failures,
    coalesce(e.crashes, r.crashes, s.crashes, b.crashes, l.crashes, 0) as crashes,
    coalesce(s.run_at, b.run_at) as run_at, coalesce(l.worker, w.id) as worker, coalesce(l.claimed_at, e.claimed_at) as claimed_at,
    l.worker is not null and exists (select from headrace.stop t where t.batch = j.batch and t.ord = j.ord) as cancelling,
    e.finished_at, e.result, e.result_until, coalesce(e.note, r.note, s.note, b.note) as note,
    nullif(coalesce(w.name, (select x.name from headrace.runner x where x.id = l.worker)), '') as worker_name
from headrace.job j
-- As in `ending_of`. The equal blocks of 32 are for hash and merge joins, which read many jobs at once.
left join headrace.ending e on e.batch = j.batch and e.ord >> 5 = j.ord >> 5
    and e.ord >= j.ord >> 5 << 5 and e.ord <= j.ord and coalesce(e.hi, e.ord) >= j.ord
left join headrace.runner w on w.no = e.worker
left join lateral (
    select x.batch, x.attempt, x.failures, x.crashes, x.note from headrace.ready x
    where e.batch is null and x.queue = j.queue and x.priority = j.priority and x.tenant = coalesce(j.tenant, '')
        and x.lane = coalesce(j.lane, 0) and x.seq = j.seq and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1
) r on true
left join lateral (
    select x.batch, x.attempt, x.failures, x.crashes, x.run_at, x.note from headrace.scheduled x
    where e.batch is null and r.batch is null and x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1
) s on true
left join lateral (
    select x.batch, x.attempt, x.failures, x.crashes, x.run_at, x.note from headrace.blocked x
    where e.batch is null and r.batch is null and s.batch is null and x.batch = j.batch and x.hi >= j.ord and x.lo <= j.ord
    order by x.hi limit 1
) b on true
left join lateral (
    select h.worker, h.claimed_at, coalesce(u.attempt, 1) as attempt, coalesce(u.failures, 0) as failures,
        coalesce(u.crashes, 0) as crashes
    from headrace.lease h
    cross join lateral (
        select x.*, sum(x.hi - x.lo + 1) over (order by x.o) - (x.hi - x.lo + 1) as base
        from unnest(h.r_batch, h.r_lo, h.r_hi, h.r_attempt, h.r_failures, h.r_crashes)
            with ordinality x(batch, lo, hi, attempt, failures, crashes, o)
    ) u
    where e.batch is null and r.batch is null and s.batch is null and b.batch is null and h.r_batch @> array[j.batch]
        and u.batch = j.batch and j.ord between u.lo and u.hi
        and (h.gone is null or get_bit(h.gone, (u.base + j.ord - u.lo)::int4) = 0)
    limit 1
) l on true;

create or replace view headrace.jobs as
select headrace.job_id(n.batch, n.ord) as id, n.task, n.queue, n.priority, n.tenant, n.state, n.attempt, n.failures, n.crashes,
    n.enqueued_at, n.run_at, n.claimed_at, n.worker, n.finished_at, n.note, n.payload as args,
    case when n.result_until is null or n.result_until > clock_timestamp() then n.result end as result, n.batch, n.ord, n.worker_name
from headrace.job_now n;
comment on view headrace.jobs is 'Every job with its state as it is now. To look one up by id use headrace.job(id).';

-- job: one row of headrace.jobs by id, found by its key.
create or replace function headrace.job(p_id uuid) returns setof headrace.jobs language sql stable rows 1 as $$
    select * from headrace.jobs n where n.batch = headrace.id_batch(p_id) and n.ord = headrace.id_ord(p_id)
$$;
