-- name: lane
-- Jobs of a lane in ranges before ?5, looking at no more than ?6 ranges.
select coalesce(sum(hi - lo + 1), 0) from (
    select lo, hi from headrace_ready
    where line = (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2 and tenant = ?3 and lane = ?4 and lo < ?5
    limit ?6
);

-- name: higher
-- Jobs of higher priority, looking at no more than ?3 ranges.
select coalesce(sum(hi - lo + 1), 0) from (
    select lo, hi from headrace_ready
    where line >= (select id from headrace_queue where name = ?1) * 4096
        and line < (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
    limit ?3
);

-- name: limits
select limits from headrace_job where key = ?;

-- name: ids
-- The ids of batches. ?1: JSON array of seqs.
select seq, id from headrace_batch where seq in (select value from json_each(?1));
