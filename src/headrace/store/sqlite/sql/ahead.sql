-- name: lane
-- Jobs of a lane in ranges before (?5, ?6), looking at no more than ?7 ranges.
select coalesce(sum(hi - lo + 1), 0) from (
    select * from (
        select lo, hi from headrace_ready
        where queue = ?1 and priority = ?2 and tenant = ?3 and lane = ?4 and batch < ?5
        limit ?7
    )
    union all
    select * from (
        select lo, hi from headrace_ready
        where queue = ?1 and priority = ?2 and tenant = ?3 and lane = ?4 and batch = ?5 and lo < ?6
        limit ?7
    )
);

-- name: higher
-- Jobs of higher priority, looking at no more than ?3 ranges.
select coalesce(sum(hi - lo + 1), 0) from (
    select lo, hi from headrace_ready where queue = ?1 and priority > ?2 limit ?3
);

-- name: paused
select by, at from headrace_paused where queue = ?;
