-- name: add
insert or ignore into headrace_history (start, id, span, queue, task, ending, count, wait, run, sent)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: read
-- Rollups of other queues and tasks answer with their keys only, so that the caller knows how far the statement came.
select
    start, id, (:queue is null or queue = :queue) and (:task is null or task = :task) as fits,
    span, queue, task, ending, count, wait, run, sent
from headrace_history
where (start, id) > (:start, :id) and start < :until order by start, id limit :limit;

-- name: folds
select folds from headrace_fold;

-- name: gone
delete from headrace_history where start = ? and id = ?;

-- name: folded
insert into headrace_fold (one, folds) values (1, 1) on conflict do update set folds = folds + 1;
