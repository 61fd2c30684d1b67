-- name: forget
delete from headrace_worker where id = ?;

-- name: free
delete from headrace_upkeep where worker = ?;
