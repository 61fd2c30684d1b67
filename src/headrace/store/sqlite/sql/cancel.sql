-- name: stop
-- Ask for a running job to be stopped.
insert or replace into headrace_stop (token, position, reason) values (?, ?, ?);
