-- name: repeated
-- The answer of an earlier call with the same batch id: (existing).
select existing from headrace_batch where id = ?;

-- name: key
-- The job that an idempotency key made, if its window is still open: (digest, job).
select digest, job from headrace_idem where task = ? and name = ? and expires_at > ?;

-- name: remember
-- A key's first job, or its first one in a new window.
insert or replace into headrace_idem (task, name, digest, job, expires_at) values (?, ?, ?, ?, ?);

-- name: forget_key
-- A key of a job that was not stored after all.
delete from headrace_idem where task = ? and name = ? and job = ?;

-- name: batch
-- One enqueue call: answers its place in the order of calls.
insert into headrace_batch (id, enqueued_at, options, existing) values (?, ?, ?, ?) returning seq;

-- name: new_batch
-- The same for a call without keys and unique locks. A repeated call answers no row and changes nothing.
insert into headrace_batch (id, enqueued_at, options) values (?, ?, ?) on conflict (id) do nothing returning seq;

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

-- name: packed_tenants
-- Many jobs of one queue, priority, task and options, without limit keys, in one step. ?1: key of place 0.
-- ?2: tenants and payloads, one after another. ?3: JSON array of numbers, each place << 47 | offset << 23 | the payload's
-- length << 8 | the tenant's.
insert into headrace_job (key, queue, priority, tenant, lane, limits, task, options, payload)
select ?1 + (value >> 47), ?4, ?5,
    coalesce(cast(substr(?2, 1 + ((value >> 23) & 0xffffff), value & 0xff) as text), ''), 0, null, ?6, ?7,
    coalesce(substr(?2, 1 + ((value >> 23) & 0xffffff) + (value & 0xff), (value >> 8) & 0x7fff), x'')
from json_each(?3);

-- name: jobs_of_lanes
-- Many jobs of one queue, priority, task (?4) and options in one step.
-- ?1: key of place 0. ?6: the payloads, one after another. ?7: JSON array of [place, start, length, tenant, lane, limits].
insert into headrace_job (key, queue, priority, task, options, tenant, lane, limits, payload)
select ?1 + json_extract(value, '$[0]'), ?2, ?3, ?4, ?5,
    json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
    coalesce(substr(?6, json_extract(value, '$[1]'), json_extract(value, '$[2]')), x'')
from json_each(?7);

-- name: queue
select id from headrace_queue where name = ?;

-- name: new_queue
insert into headrace_queue (name) values (?) returning id;

-- name: fresh
-- Ranges of jobs that never ran.
insert into headrace_ready
(line, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note)
values (?, ?, ?, ?, ?, 0, 0, 0, 0, null);

-- name: fresh_tenants
-- The same of one line (?2), without limit keys. ?1: key of place 0. ?3: names of tenants, one after another.
-- ?4: JSON array of numbers, each place << 47 | (length - 1) << 31 | where the name begins << 8 | its length.
insert into headrace_ready
(line, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note)
select ?2, coalesce(cast(substr(?3, 1 + ((value >> 8) & 0x7fffff), value & 0xff) as text), ''), 0,
    ?1 + (value >> 47), ?1 + (value >> 47) + ((value >> 31) & 0xffff), 0, 0, 0, 0, null
from json_each(?4);

-- name: ready
insert into headrace_ready
(line, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note)
values (
    (select id from headrace_queue where name = ?) * 4096 + 1000 - ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?
);

-- name: scheduled
insert into headrace_scheduled
(queue, priority, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note, run_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: limited
-- Tenants of this line may have several lanes from now on.
insert or ignore into headrace_limited (line) values (?);

-- name: lock
-- Who took a unique lock last: its key, its batch's id and when that was enqueued.
select u.key, b.id, b.enqueued_at from headrace_unique as u
join headrace_batch as b on b.seq = u.key >> 16
where u.task = ? and u.name = ?;

-- name: take_lock
insert or replace into headrace_unique (task, name, key) values (?, ?, ?);
