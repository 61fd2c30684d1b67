-- name: pause
insert or ignore into headrace_paused (queue, by, at) values (?, ?, ?);

-- name: resume
delete from headrace_paused where queue = ?;
