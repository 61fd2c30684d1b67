-- name: floor
-- Where so many batches further down begin.
select id from headrace_batch where id <= ? order by id desc limit 1 offset ?;

-- name: newest
-- Jobs by filter, walking batches from the newest id down, as far as :floor.
select key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
    finished_at, note, payload, options, result, result_until
from headrace_jobs
where batch <= :from and batch > :floor and {where}
order by batch desc, key desc
limit :limit;

-- name: ranges
-- The same, starting from the only ranges where such jobs can be: for states that few jobs are in.
-- :ranges: JSON array of [lo, hi].
select key, batch, task, queue, priority, tenant, limits, state, attempt, failures, crashes, enqueued_at, run_at,
    finished_at, note, payload, options, result, result_until
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
