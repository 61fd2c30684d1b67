-- name: seen
select id, name, queues, slots, running, version, started_at, tasks, seen_at
from headrace_worker where seen_at > ? order by name, id;
