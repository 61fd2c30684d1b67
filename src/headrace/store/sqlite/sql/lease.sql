-- name: first_expiry
select min(expires_at) from headrace_lease;

-- name: any_expired
select 1 from headrace_lease where expires_at <= ? limit 1;

-- name: one
select token, worker, cause, claimed_at, expires_at, suspect, size, settled, ranges
from headrace_lease where token = ?;

-- name: expired
-- The longest expired first.
select token, worker, cause, claimed_at, expires_at, suspect, size, settled, ranges
from headrace_lease where expires_at <= ? order by expires_at limit ?;

-- name: around
-- Leases whose lowest key is at most ?1 and whose highest is at least ?2.
select token, worker, cause, claimed_at, expires_at, suspect, size, settled, ranges
from headrace_lease where lo <= ? and hi >= ?;

-- name: some
-- At most so many leases.
select token, worker, cause, claimed_at, expires_at, suspect, size, settled, ranges from headrace_lease limit ?;

-- name: insert
insert into headrace_lease
(token, worker, cause, claimed_at, expires_at, suspect, size, lo, hi, settled, ranges)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: settled
update headrace_lease set settled = ? where token = ?;

-- name: end
delete from headrace_lease where token = ?;

-- name: stops
select token, position, reason from headrace_stop where token in (:tokens);
