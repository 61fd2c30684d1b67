-- name: expire
update headrace_lease set expires_at = ?, cause = ? where worker = ?;
