-- name: take_over
update headrace_lease set token = ?, worker = ?, cause = null, expires_at = ? where token = ?;

-- name: take_stops
update headrace_stop set token = ? where token = ?;
