-- name: forget
delete from headrace_worker where id = ?;
