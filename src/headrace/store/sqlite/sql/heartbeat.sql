-- name: renew
update headrace_lease set expires_at = ? where token in (:tokens) returning token;

-- name: runner
-- A worker that settled before its first heartbeat has no name yet.
insert into headrace_runner (id, name, at) values (?, ?, ?)
on conflict (id) do update set name = excluded.name where name <> excluded.name;

-- name: present
insert or replace into headrace_worker
(id, name, queues, slots, running, version, started_at, tasks, seen_at, hindered, memory)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: late
delete from headrace_upkeep where until <= ?;

-- name: upkeep
insert into headrace_upkeep (workers, worker, until)
select ?1, ?2, ?3 where (select count(*) from headrace_upkeep where workers = ?1 and worker <> ?2) < ?4
on conflict (workers, worker) do update set until = excluded.until;

-- name: order
select value from headrace_record where kind = ? and name = ?;
