-- name: top
-- The first line with waiting jobs of a queue, between priorities ?3 and ?2.
select line from headrace_ready
where line >= (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?2
    and line <= (select id from headrace_queue where name = ?1) * 4096 + 1000 - ?3
order by line limit 1;

-- name: waiting
-- Up to ?2 queues that have jobs waiting, in the order of their numbers after ?1: one seek for each. As a JSON array of
-- number and name.
with recursive q (id) as (
    select (select a.line >> 12 from headrace_ready as a where a.line >= (?1 + 1) * 4096 order by a.line limit 1)
    union all
    select (
        select b.line >> 12 from headrace_ready as b where b.line >= (q.id + 1) * 4096 order by b.line limit 1
    ) from q where q.id is not null
    limit ?2
)
select json_group_array(json_array(n.id, n.name)) from q cross join headrace_queue as n on n.id = q.id;

-- name: limited
-- Whether tenants of this line may have more than one lane.
select 1 from headrace_limited where line = ?;

-- name: stretch
-- Up to ?3 ranges of a line from tenant ?2 on, as they come. Column by column, as JSON: every row would give up the
-- interpreter lock, and arrays of arrays cost twice as much. Counts are null where they all are 0.
select json_group_array(tenant), json_group_array(lane), json_group_array(lo), json_group_array(hi),
    json_group_array(
        case when attempt | failures | crashes | suspect then
            attempt || ' ' || failures || ' ' || crashes || ' ' || suspect
        end
    )
from (
    select tenant, lane, lo, hi, attempt, failures, crashes, suspect from headrace_ready
    where line = ?1 and tenant >= ?2 order by tenant, lane, lo limit ?3
);

-- name: tenants
-- Up to ?3 tenants of a line from ?2 on, in their order, each with its first ranges (?4): two seeks per tenant, however long
-- their lanes are. As one JSON array of: tenant, whether it has more lanes than the first one, and ranges, each of them
-- lane, lo, hi, attempt, failures, crashes, suspect.
with recursive t (tenant) as (
    select (
        select a.tenant from headrace_ready as a
        where a.line = ?1 and a.tenant >= ?2 order by a.tenant limit 1
    )
    union all
    select (
        select b.tenant from headrace_ready as b
        where b.line = ?1 and b.tenant > t.tenant order by b.tenant limit 1
    ) from t where t.tenant is not null
    limit ?3
)
select '[' || group_concat('[' || json_quote(t.tenant) || ',0,[' || (
    select group_concat(json_array(r.lane, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect)) from (
        select * from headrace_ready as x
        where x.line = ?1 and x.tenant = t.tenant order by x.lane, x.lo limit ?4
    ) as r
) || ']]') || ']'
from t where t.tenant is not null;

-- name: tenants_of_lanes
-- The same where tenants may have several lanes.
with recursive t (tenant) as (
    select (
        select a.tenant from headrace_ready as a
        where a.line = ?1 and a.tenant >= ?2 order by a.tenant limit 1
    )
    union all
    select (
        select b.tenant from headrace_ready as b
        where b.line = ?1 and b.tenant > t.tenant order by b.tenant limit 1
    ) from t where t.tenant is not null
    limit ?3
)
select '[' || group_concat('[' || json_quote(t.tenant) || ',' || exists (
    select 1 from headrace_ready as y
    where y.line = ?1 and y.tenant = t.tenant and y.lane > (
        select z.lane from headrace_ready as z where z.line = ?1 and z.tenant = t.tenant order by z.lane limit 1
    )
) || ',[' || (
    select group_concat(json_array(r.lane, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect)) from (
        select * from headrace_ready as x
        where x.line = ?1 and x.tenant = t.tenant order by x.lane, x.lo limit ?4
    ) as r
) || ']]') || ']'
from t where t.tenant is not null;

-- name: tenant
-- One tenant in the same form, its first ?3 ranges.
select '[[' || json_quote(?2) || ',' || exists (
    select 1 from headrace_ready as y
    where y.line = ?1 and y.tenant = ?2 and y.lane > (
        select z.lane from headrace_ready as z where z.line = ?1 and z.tenant = ?2 order by z.lane limit 1
    )
) || ',[' || (
    select group_concat(json_array(r.lane, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect)) from (
        select * from headrace_ready as x
        where x.line = ?1 and x.tenant = ?2 order by x.lane, x.lo limit ?3
    ) as r
) || ']]]';

-- name: lanes
-- Up to ?4 lanes of a tenant from ?3 on, each with its first ranges (?5), in the same form.
with recursive t (lane) as (
    select (
        select a.lane from headrace_ready as a
        where a.line = ?1 and a.tenant = ?2 and a.lane >= ?3 order by a.lane limit 1
    )
    union all
    select (
        select b.lane from headrace_ready as b
        where b.line = ?1 and b.tenant = ?2 and b.lane > t.lane order by b.lane limit 1
    ) from t where t.lane is not null
    limit ?4
)
select '[' || group_concat('[' || json_quote(?2) || ',0,[' || (
    select group_concat(json_array(r.lane, r.lo, r.hi, r.attempt, r.failures, r.crashes, r.suspect)) from (
        select * from headrace_ready as x
        where x.line = ?1 and x.tenant = ?2 and x.lane = t.lane order by x.lo limit ?5
    ) as r
) || ']]') || ']'
from t where t.lane is not null;

-- name: ranges
-- Up to ?5 ranges of a lane from ?4 on, column by column, as in `stretch`.
select json_group_array(lo), json_group_array(hi),
    json_group_array(
        case when attempt | failures | crashes | suspect then
            attempt || ' ' || failures || ' ' || crashes || ' ' || suspect
        end
    )
from (
    select lo, hi, attempt, failures, crashes, suspect from headrace_ready
    where line = ?1 and tenant = ?2 and lane = ?3 and lo >= ?4 order by lo limit ?5
);

-- name: take
-- Ranges of a lane that begin before a key.
delete from headrace_ready where line = ? and tenant = ? and lane = ? and lo < ?;

-- name: shorten
-- The first jobs of a range are taken.
update headrace_ready set lo = ? where line = ? and tenant = ? and lane = ? and lo = ?;

-- name: take_tenants
-- Everything of some tenants that stand side by side.
delete from headrace_ready where line = ? and tenant >= ? and tenant <= ?;

-- name: take_many
-- What goes, see the view.
insert into headrace_take (line, first, last, lane, upto, rest) values (?, ?, ?, ?, ?, ?);

-- name: jobs
-- What a worker needs of each job, in the order asked, as one row: every row would give up the interpreter lock.
-- Payloads and options one after another. ?1: JSON array of numbers, each key << 10 | how many more follow it.
select json_group_array(j.task),
    cast(group_concat(j.payload, '') as blob), json_group_array(length(j.payload)),
    cast(group_concat(j.options, '') as blob), json_group_array(length(j.options))
from json_each(?1) as k
cross join headrace_job as j on j.key between k.value >> 10 and (k.value >> 10) + (k.value & 1023);

-- name: lengths
-- The length of each payload, in the order asked, as one row.
select json_group_array(length(j.payload))
from json_each(?1) as k
cross join headrace_job as j on j.key between k.value >> 10 and (k.value >> 10) + (k.value & 1023);

-- name: batches
-- When batches came, and the options that their jobs share. ?1: JSON array of seqs.
select json_group_array(json_array(seq, hex(id), enqueued_at, hex(options)))
from headrace_batch where seq in (select value from json_each(?1));

-- name: each_job
-- The same as rows, for payloads that are too large together.
select j.task, j.payload, j.options
from json_each(?1) as k
cross join headrace_job as j on j.key between k.value >> 10 and (k.value >> 10) + (k.value & 1023);
