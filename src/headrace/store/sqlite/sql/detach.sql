-- name: move_stop
update headrace_stop set token = ?, position = 0 where token = ? and position = ?;
