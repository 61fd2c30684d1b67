-- name: seen
select id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered, memory
from headrace_worker where seen_at > ? order by name, id;
