-- name: ends
-- Ended ranges of one state from a time on, the earliest end first: (finished_at, jobs).
select finished_at, hi - lo + 1 from headrace_ending where state = ? and finished_at >= ? order by finished_at limit ?;

-- name: jobs
-- Jobs of one state that ended between two times.
select e.finished_at, b.id, j.key, j.queue, j.task, j.tenant
from headrace_ending as e
cross join headrace_job as j on j.key between e.lo and e.hi
cross join headrace_batch as b on b.seq = j.key >> 16
where e.state = ? and e.finished_at between ? and ?;
