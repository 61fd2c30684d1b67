-- name: ranges
-- Ended ranges of one state from a time on, the earliest end first.
select e.finished_at, b.id, e.lo, e.hi
from headrace_ending as e cross join headrace_batch as b on b.seq = e.lo >> 16
where e.state = ? and e.finished_at >= ? order by e.finished_at limit ?;

-- name: moment
-- Ended ranges of one state and one moment.
select e.finished_at, b.id, e.lo, e.hi
from headrace_ending as e cross join headrace_batch as b on b.seq = e.lo >> 16
where e.state = ? and e.finished_at = ?;

-- name: jobs
select key, queue, task, tenant from headrace_job where key between ? and ? order by key;
