-- name: repeated
-- The answer of an earlier call with the same batch id: (existing).
select existing from headrace_batch where id = ?;

-- name: key
-- The job that an idempotency key made, if its window is still open: (digest, job).
select digest, job from headrace_idem where task = ? and name = ? and expires_at > ?;

-- name: remember
-- A key's first job, or its first one in a new window.
insert or replace into headrace_idem (task, name, digest, job, expires_at) values (?, ?, ?, ?, ?);

-- name: batch
-- One enqueue call: answers its place in the order of calls.
insert into headrace_batch (id, enqueued_at, existing) values (?, ?, ?) returning seq;

-- name: packed
-- Many jobs of one lane, task and options in one step. ?1: key of place 0. ?2: the payloads, one after another.
-- ?3: JSON array of numbers, each place << 47 | offset << 23 | length.
insert into headrace_job (key, queue, priority, tenant, lane, limits, task, options, payload)
select ?1 + (value >> 47), ?4, ?5, ?6, ?7, ?8, ?9, ?10,
    coalesce(substr(?2, 1 + ((value >> 23) & 0xffffff), value & 0x7fffff), x'')
from json_each(?3);

-- name: job
insert into headrace_job (key, queue, priority, tenant, lane, limits, task, options, payload)
values (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: ready
insert into headrace_ready
(queue, priority, tenant, lane, batch, lo, hi, attempt, failures, crashes, suspect, note)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: scheduled
insert into headrace_scheduled
(queue, priority, tenant, lane, batch, lo, hi, attempt, failures, crashes, suspect, note, run_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
