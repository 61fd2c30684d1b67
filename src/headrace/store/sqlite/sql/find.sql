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
