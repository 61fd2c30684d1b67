-- name: append
-- One enqueue call of one plain job. A repeated call adds another row, and the fold keeps the first one.
insert into headrace_inbox (id, at, queue, priority, tenant, task, options, payload) values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: waits
select 1 from headrace_inbox limit 1;

-- name: job
-- The job of a batch.
select task, queue, priority, tenant, at, payload, options from headrace_inbox where id = ? order by seq limit 1;

-- name: last
-- The number of the last enqueue call in the tables of jobs, if there is anything to fold.
select (select coalesce(max(seq), 0) from headrace_batch) where exists (select 1 from headrace_inbox);

-- name: batches
-- ?1: the number of the last enqueue call. A batch that is known already is a repeated call: it gets no number here, and so
-- no job and no range below.
insert or ignore into headrace_batch (seq, id, enqueued_at) select ?1 + seq, id, at from headrace_inbox order by seq;

-- name: counts
-- New jobs by queue.
select i.queue, count(*) from headrace_inbox as i cross join headrace_batch as b on b.seq = ?1 + i.seq group by i.queue;

-- name: jobs
insert into headrace_job (key, queue, priority, tenant, lane, limits, task, options, payload)
select b.seq << 16, i.queue, i.priority, i.tenant, 0, null, i.task, i.options, i.payload
from headrace_inbox as i cross join headrace_batch as b on b.seq = ?1 + i.seq
order by i.seq;

-- name: ready
insert into headrace_ready (line, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note)
select q.id * 4096 + 1000 - i.priority, i.tenant, 0, b.seq << 16, b.seq << 16, 0, 0, 0, 0, null
from headrace_inbox as i
cross join headrace_batch as b on b.seq = ?1 + i.seq
cross join headrace_queue as q on q.name = i.queue
order by i.seq;

-- name: clear
delete from headrace_inbox;
