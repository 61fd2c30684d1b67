-- name: old
-- Ended ranges past retention, the oldest first, behind the place (?2, ?3), and whether one of their jobs counts on a gate that keeps its
-- members. The two looks are those of `counted_on` in gates.sql.
select
    lo, hi, finished_at,
    exists (
        select 1 from headrace_edge as m join headrace_gate as g on g.no = m.gate
        where m.first between e.lo and e.hi and (
            g.sealed or exists (select 1 from headrace_blocked where source = -g.no)
            or exists (select 1 from headrace_edge where first = -g.no)
        )
    ) or exists (
        select 1 from headrace_edge as m join headrace_gate as g on g.no = m.gate
        where m.first >= e.lo >> 16 << 16 and m.first < e.lo and m.last >= e.lo and m.last > m.first and (
            g.sealed or exists (select 1 from headrace_blocked where source = -g.no)
            or exists (select 1 from headrace_edge where first = -g.no)
        )
    )
from headrace_ending as e
where state = ?1 and finished_at >= ?2 and (finished_at > ?2 or lo > ?3) and finished_at <= ?4
order by finished_at, lo limit ?5;

-- name: old_dead
-- Dead jobs past their own queue's retention. :times: JSON object, queue → ended by; :others: the same for the rest.
select b.id, e.lo
from headrace_ending as e join headrace_job as j on j.key = e.lo join headrace_batch as b on b.seq = e.lo >> 16
where e.state = 'dead' and e.finished_at <= :latest
    and e.finished_at <= coalesce((select value from json_each(:times) where key = j.queue), :others)
order by e.finished_at limit :limit;

-- name: results
-- Results whose time to live is over. The conditions are those of the index.
update headrace_ending set result = x''
where lo in (
    select lo from headrace_ending
    where result_until is not null and length(result) > 0 and result_until <= ? order by result_until limit ?
);

-- name: any_old
select 1 from headrace_ending
where state = ?1 and finished_at >= ?2 and (finished_at > ?2 or lo > ?3) and finished_at <= ?4 limit 1;

-- name: jobs
delete from headrace_job where key in (select value from json_each(?1));

-- name: failures
delete from headrace_failure where key in (select value from json_each(?1));

-- name: locks
delete from headrace_unique where key in (select value from json_each(?1));

-- name: reports
delete from headrace_report where key in (select value from json_each(?1));

-- name: steps
delete from headrace_step where key in (select value from json_each(?1));

-- name: units
-- Limit keys that hold nothing and whose buckets are full.
delete from headrace_unit where key in (select key from headrace_unit where full_at <= ? and held = 0 limit ?);

-- name: endings
delete from headrace_ending where lo in (select value from json_each(?1));

-- name: shorten
-- The first jobs of an ended range are gone.
update headrace_ending set lo = ? where lo = ?;

-- name: empty
-- Batches without jobs. ?1: JSON array of seqs.
update headrace_batch set hollow = 1
where seq in (select value from json_each(?1))
    and not exists (select 1 from headrace_job where key between seq << 16 and seq << 16 | 65535);

-- name: hollow
-- The newest row stays, because the next seq is the highest one plus 1 …
delete from headrace_batch where seq in (
    select seq from headrace_batch where hollow = 1 and seq < (select max(seq) from headrace_batch) limit ?
);

-- name: hollow_newest
-- The newest batch stays, but it is no longer found by its id.
update headrace_batch set id = randomblob(15), existing = null
where hollow = 1 and seq = (select max(seq) from headrace_batch) and length(id) = 16;

-- name: idem
delete from headrace_idem where (task, name) in (
    select task, name from headrace_idem where expires_at <= ? limit ?
);

-- name: runners
-- Names of workers that have been gone for so long that hardly a job they ended is kept.
delete from headrace_runner where at <= ?1 and id not in (select id from headrace_worker);

-- name: workers
delete from headrace_worker where seen_at <= ?;
