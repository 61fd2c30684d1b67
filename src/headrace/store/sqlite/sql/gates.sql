-- name: any
-- Whether there are members of gates, runs that wait for a job, and chains.
select exists (select 1 from headrace_edge), exists (select 1 from headrace_blocked where source > 0),
    exists (select 1 from headrace_chain);

-- name: make
insert into headrace_gate (id, queue, label, tenant, sealed, signalled, size, made_at, changed_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?7) on conflict (id) do nothing returning no;

-- name: number
select no from headrace_gate where id = ?;

-- name: over
-- Whether a gate takes no members: (signalled, or all its members have ended).
select signalled or (sealed and done + dead + cancelled = size) from headrace_gate where id = ?;

-- name: seal
update headrace_gate set sealed = 1, changed_at = ?2 where id = ?1 and not sealed returning no;

-- name: add_edge
insert into headrace_edge (gate, first, last) values (?, ?, ?) on conflict (gate, first) do nothing;

-- name: grow
-- More members, one state of which is known. ?2: how many, ?3 to ?5: how many of them are done, dead, cancelled.
update headrace_gate
set size = size + ?2, done = done + ?3, dead = dead + ?4, cancelled = cancelled + ?5, changed_at = ?6 where no = ?1;

-- name: counted_on
-- The gates on which sources count: (index of the run of sources, gate, first and last member of a run of members, and what the
-- gate is and has counted). ?1: JSON array of runs of sources, each [first, last, the first source of the same batch].
select r.key, e.gate, e.first, e.last, g.sealed, g.size, g.told, g.done, g.dead, g.cancelled
from json_each(?1) as r cross join headrace_edge as e cross join headrace_gate as g on g.no = e.gate
where e.first between json_extract(r.value, '$[0]') and json_extract(r.value, '$[1]')
union all
select r.key, e.gate, e.first, e.last, g.sealed, g.size, g.told, g.done, g.dead, g.cancelled
from json_each(?1) as r cross join headrace_edge as e cross join headrace_gate as g on g.no = e.gate
where e.first >= json_extract(r.value, '$[2]') and e.first < json_extract(r.value, '$[0]')
    and e.last >= json_extract(r.value, '$[0]') and e.last > e.first;

-- name: count
-- How many members of a gate are done, dead and cancelled by now. Exact, because nothing else writes meanwhile.
update headrace_gate set done = ?2, dead = ?3, cancelled = ?4, changed_at = ?5 where no = ?1;

-- name: awaited
-- The sources that something waits for, one seek for each: (index of the run of sources, source). ?1: as above.
with recursive w (run, source, last) as (
    select r.key, (
        select a.source from headrace_blocked as a where a.source >= json_extract(r.value, '$[0]') order by a.source limit 1
    ), json_extract(r.value, '$[1]') from json_each(?1) as r
    union all
    select w.run, (
        select b.source from headrace_blocked as b where b.source > w.source order by b.source limit 1
    ), w.last from w where w.source < w.last
)
select run, source from w where source <= last;

-- name: state
select sealed, size, done, dead, cancelled, told from headrace_gate where no = ?;

-- name: told
update headrace_gate set told = ?2 where no = ?1;

-- name: block
insert into headrace_blocked
(source, needs, delay, due, run_at, queue, priority, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: block_runs
-- Runs of jobs that never ran, alike but for what they wait for. ?1: JSON array of [source, first key, last key].
insert into headrace_blocked
(source, lo, hi, needs, delay, due, queue, priority, tenant, lane, attempt, failures, crashes, suspect)
select json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), ?2, ?3, ?4, ?5, ?6, ?7, ?8,
    0, 0, 0, 0
from json_each(?1);

-- name: release
-- Runs of jobs that never ran are ready in a lane of a line (?2). ?1: JSON array of [first key, last key].
insert into headrace_ready (line, tenant, lane, lo, hi, attempt, failures, crashes, suspect)
select ?2, ?3, ?4, json_extract(value, '$[0]'), json_extract(value, '$[1]'), 0, 0, 0, 0 from json_each(?1);

-- name: followers
-- Runs that wait for one of some sources (?1) with one of some needs (?2), both JSON arrays.
select b.source, b.needs, b.delay, b.due, b.queue, b.priority, b.tenant, b.lane, b.lo, b.hi, b.attempt, b.failures, b.crashes,
    b.suspect, b.note
from json_each(?1) as s cross join headrace_blocked as b
where b.source = s.value and b.needs in (select value from json_each(?2)) limit ?3;

-- name: unblock
delete from headrace_blocked where lo in (select value from json_each(?1));

-- name: due
-- Suspended jobs whose time has come.
select distinct queue, priority, tenant, lane, lo, hi, attempt, failures, crashes, suspect, note
from headrace_blocked where run_at <= ?1 order by run_at, lo limit ?2;

-- name: put_off
insert or ignore into headrace_opening (source) select value from json_each(?1);

-- name: openings
select source from headrace_opening limit ?;

-- name: opened
delete from headrace_opening where source = ?;

-- name: signal
update headrace_gate set done = 1, value = ?2, kept_until = ?3, changed_at = ?4
where id = ?1 and signalled and value is null returning no;

-- name: gate
select id, queue, label, tenant, sealed, size, done, dead, cancelled, signalled, value, made_at, changed_at
from headrace_gate where id = ?;

-- name: groups
-- Newest id first. ?1: only of this tenant, or null. ?2: only below this id, or null.
select id, queue, label, tenant, sealed, size, done, dead, cancelled, signalled, value, made_at, changed_at
from headrace_gate
where label <> '' and (?1 is null or tenant = ?1) and (?2 is null or id < ?2)
order by id desc limit ?3;

-- name: members
-- In the order of their keys. ?2: only those that begin above.
select first, last from headrace_edge where gate = ?1 and first > ?2 order by first limit ?3;

-- name: gate_members
-- The other members: gates, whose numbers are negative here.
select first, last from headrace_edge where gate = ?1 and first < 0 order by first desc;

-- name: blocked
-- Runs that wait for a source.
select lo, hi from headrace_blocked where source = ?1
union all
select ?1 + 1, ?1 + 1 from headrace_chain
where hi = (select min(hi) from headrace_chain where hi > ?1) and lo <= ?1 + 1
order by 1 limit ?2;

-- name: waits
-- What a blocked job waits for. ?1: its key.
select source, needs from headrace_blocked
where lo = (select max(lo) from headrace_blocked where lo <= ?1) and hi >= ?1
union all
select ?1 - 1, 'done' from headrace_chain
where hi = (select min(hi) from headrace_chain where hi >= ?1) and lo <= ?1
order by 1;

-- name: batch
select id from headrace_batch where seq = ?;

-- name: gate_id
select id from headrace_gate where no = ?;

-- name: old
-- Gates that nothing waits for: over, and unchanged since ?1, or with a signal that was kept long enough. A gate that counts on one that
-- keeps its members stays, as a job does: see `old` in prune.sql.
select no from headrace_gate as g indexed by headrace_gate_over
where changed_at <= iif(kept_until is null, ?1, ?2) and sealed and size = done + dead + cancelled
    and (kept_until is null or kept_until <= ?2)
    and not exists (select 1 from headrace_blocked where source = -g.no)
    and not exists (
        select 1 from headrace_edge as m join headrace_gate as o on o.no = m.gate
        where m.first = -g.no and (
            o.sealed or exists (select 1 from headrace_blocked where source = -o.no)
            or exists (select 1 from headrace_edge where first = -o.no)
        )
    )
order by changed_at limit ?3;

-- name: never_sealed
select no from headrace_gate where changed_at <= ? and not sealed order by changed_at limit ?;

-- name: drop_edges
delete from headrace_edge where gate = ?1;

-- name: drop_as_member
delete from headrace_edge where first = -?1;

-- name: drop_gate
delete from headrace_gate where no = ?;
