-- name: add
insert or ignore into headrace_step (key, name, number, digest, value, at) values (?, ?, ?, ?, ?, ?);

-- name: read
select name, number, digest, value, at from headrace_step where key = ? order by id;

-- name: forget
delete from headrace_step where key = ?;

-- name: is_undone
-- Whether a dead job has registered undo jobs, and they were let go. ?2: the name of the steps that register them.
select exists (select 1 from headrace_step where key = ?1 and name = ?2)
    and not exists (select 1 from headrace_blocked where source = ?1 and needs = 'failed');

-- name: value
-- What a gate was signalled with.
select value from headrace_gate where id = ?;

-- name: is_named
select exists (select 1 from headrace_step where key = ? and name = ?);
