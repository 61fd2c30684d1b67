-- name: renew
update headrace_lease set expires_at = ? where token in (:tokens) returning token;

-- name: runner
insert or ignore into headrace_runner (id, name, at) values (?, ?, ?);

-- name: present
insert or replace into headrace_worker
(id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
