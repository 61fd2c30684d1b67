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

-- name: chunk
-- The next ?3 batches from ?1 on down: how many they are, the lowest id, the lowest and the highest seq. ?2: the key of a job
-- of the first one. 0: nothing of it is left.
select count(*), min(id), min(seq), max(seq)
from (
    select id, seq from headrace_batch where id <= ?1 and (id < ?1 or ?2 > 0) order by id desc limit ?3
);

-- name: rare
-- Jobs that ended so in the batches from :batch down to :low, without the job :key of the first one and those above it. The
-- newest come first, at most :limit rows. For batches whose seqs lie close together.
select b.id, e.lo, e.hi from headrace_ending as e indexed by headrace_ending_rare
cross join headrace_batch as b on b.seq = e.lo >> 16
where e.state in ('dead', 'cancelled') and e.state in ({states})
    and e.lo >= :first << 16 and e.lo <= :last << 16 | 65535
    and b.id <= :batch and b.id >= :low and (b.id < :batch or e.lo < :key)
order by b.id desc, e.lo desc limit :limit;

-- name: rare_apart
-- The same for batches whose seqs lie far apart: it looks into each of them.
select b.id, e.lo, e.hi from headrace_batch as b
cross join headrace_ending as e indexed by headrace_ending_rare
    on e.lo >= b.seq << 16 and e.lo <= b.seq << 16 | 65535
where e.state in ('dead', 'cancelled') and e.state in ({states})
    and b.id <= :batch and b.id >= :low and (b.id < :batch or e.lo < :key)
order by b.id desc, e.lo desc limit :limit;

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

-- name: blocked
select lo, hi from headrace_blocked union select lo, hi from headrace_chain limit ?;

-- name: text
-- Literal and case-sensitive.
(instr(task, :text) or instr(note, :text) or exists (
    select 1 from headrace_failure as f
    where f.key = headrace_jobs.key and (instr(f.kind, :text) or instr(f.message, :text))
))
