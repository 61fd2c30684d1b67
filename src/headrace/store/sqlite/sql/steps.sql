-- name: add
insert or ignore into headrace_step (key, name, number, digest, value, at) values (?, ?, ?, ?, ?, ?);

-- name: read
select name, number, digest, value, at from headrace_step where key = ? order by id;

-- name: forget
delete from headrace_step where key = ?;
