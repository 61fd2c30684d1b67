-- name: insert
insert into headrace_chain (hi, lo, line, tenant, lane) values (?, ?, ?, ?, ?);

-- name: after
-- The chains whose first job waits for one of some jobs (?1, a JSON array of keys), by the queue of these first jobs: how many,
-- how many of them have no further job, and where they end, as a JSON array.
select q.name, count(*), sum(c.lo = c.hi), json_group_array(c.hi)
from json_each(?1) as s
cross join headrace_chain as c
    on c.hi = (select n.hi from headrace_chain as n where n.hi > s.value order by n.hi limit 1) and c.lo = s.value + 1
cross join headrace_queue as q on q.id = c.line >> 12
group by q.id;

-- name: release
-- The first jobs of chains are ready. ?1: JSON array of the ends of chains, here and below.
insert into headrace_ready (line, tenant, lane, lo, hi, attempt, failures, crashes, suspect)
select c.line, c.tenant, c.lane, c.lo, c.lo, 0, 0, 0, 0 from json_each(?1) as s cross join headrace_chain as c on c.hi = s.value;

-- name: shorten
update headrace_chain set lo = lo + 1 where hi in (select value from json_each(?1));

-- name: drop_empty
delete from headrace_chain where hi in (select value from json_each(?1)) and lo > hi;

-- name: loosen
insert into headrace_blocked (lo, source, hi, needs, queue, priority, tenant, lane, attempt, failures, crashes, suspect)
select j.key, j.key - 1, j.key, 'done', j.queue, j.priority, j.tenant, j.lane, 0, 0, 0, 0
from json_each(?1) as s
cross join headrace_chain as c on c.hi = s.value
cross join headrace_job as j on j.key between c.lo and c.hi;

-- name: drop
delete from headrace_chain where hi in (select value from json_each(?1));

-- name: around
-- The chain that may hold a key.
select lo, hi, 0, 0, 0, 0, null from headrace_chain where hi >= ? order by hi limit 1;

-- name: begin_later
update headrace_chain set lo = ?2 where hi = ?1;

-- name: first_part
-- The jobs of a chain before a key (?2).
insert into headrace_chain (hi, lo, line, tenant, lane)
select ?2 - 1, lo, line, tenant, lane from headrace_chain where hi = ?1 and lo < ?2;
