-- name: add
-- Adds differences to the counters of a queue.
insert into headrace_depth (queue, ready, scheduled, running, dead, done_total, failed_total, enqueued_total, blocked)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (queue) do update set
    ready = ready + excluded.ready,
    scheduled = scheduled + excluded.scheduled,
    running = running + excluded.running,
    dead = dead + excluded.dead,
    done_total = done_total + excluded.done_total,
    failed_total = failed_total + excluded.failed_total,
    enqueued_total = enqueued_total + excluded.enqueued_total,
    blocked = blocked + excluded.blocked;
