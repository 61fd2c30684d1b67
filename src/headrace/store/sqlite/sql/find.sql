-- name: floor
-- The job that comes after ?3 others, walking down from job ?2 of batch ?1, which is not counted.
select b.id, j.key from headrace_batch as b
cross join headrace_job as j
    on j.key >= b.seq << 16 and j.key <= iif(b.id = ?1, min(?2 - 1, b.seq << 16 | 65535), b.seq << 16 | 65535)
where b.id <= ?1
order by b.id desc, j.key desc limit 1 offset ?3;

-- name: key
-- The key that a job of a batch has or had.
select seq << 16 | ?2 from headrace_batch where id = ?1;

-- name: batches
-- The ids of batches. ?1: JSON array of seqs.
select seq, id from headrace_batch where seq in (select value from json_each(?1));

-- name: between
-- The batches from ?1 down to ?2, the newest last.
select id, seq << 16, seq << 16 | 65535 from headrace_batch where id <= ?1 and id >= ?2 order by id;

-- name: rare
-- Jobs that ended so, from job ?2 of batch ?1, which is left out, down to job ?4 of batch ?3, the newest last. Of a long
-- batch only the rows in between are read; the lowest of them may begin below ?4. The + keeps SQLite from reading all jobs
-- of the state.
select b.id, e.lo, e.hi from headrace_batch as b
cross join headrace_ending as e
    on e.lo >= iif(b.id = ?3, max(b.seq << 16, coalesce((select max(lo) from headrace_ending where lo <= ?4), 0)), b.seq << 16)
    and e.lo <= iif(b.id = ?1, min(?2 - 1, b.seq << 16 | 65535), b.seq << 16 | 65535)
where b.id <= ?1 and b.id >= ?3 and e.hi >= iif(b.id = ?3, ?4, 0) and +e.state in ({states})
order by b.id, e.lo;

-- name: ranges
-- Jobs by filter in some ranges, the newest id first. :ranges: JSON array of [lo, hi].
select key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
    finished_at, note, payload, options, result, result_until, worker, claimed_at
from (
    select json_extract(value, '$[0]') as lo, json_extract(value, '$[1]') as hi from json_each(:ranges)
) as range
cross join headrace_jobs on headrace_jobs.seq = range.lo >> 16 and headrace_jobs.key between range.lo and range.hi
where {where}
order by batch desc, key desc
limit :limit;

-- name: singles
-- The same for single jobs. A range reads the whole batch around a job. :singles: JSON array of keys.
select key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
    finished_at, note, payload, options, result, result_until, worker, claimed_at
from (select value as place from json_each(:singles)) as single
cross join headrace_jobs on headrace_jobs.seq = single.place >> 16 and headrace_jobs.key = single.place
where {where}
order by batch desc, key desc
limit :limit;

-- name: ended
select lo, hi from headrace_ending where state = ? limit ?;

-- name: ready
select lo, hi from headrace_ready limit ?;

-- name: scheduled
select lo, hi from headrace_scheduled limit ?;

-- name: text
-- Literal and case-sensitive.
(instr(task, :text) or instr(note, :text) or exists (
    select 1 from headrace_failure as f
    where f.key = headrace_jobs.key and (instr(f.kind, :text) or instr(f.message, :text))
))
