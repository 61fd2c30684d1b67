-- name: read
select boot, ahead, kept, doubt, doubted_at from headrace_clock;

-- name: keep
insert or replace into headrace_clock (id, boot, ahead, kept, doubt, doubted_at) values (1, ?, ?, ?, ?, ?);

-- name: move_leases
-- Leases keep the time that they have left.
update headrace_lease set expires_at = expires_at + ?;
