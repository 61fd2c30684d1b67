-- name: pause
insert or replace into headrace_paused (queue, by, at) values (?, ?, ?);

-- name: resume
delete from headrace_paused where queue = ?;
