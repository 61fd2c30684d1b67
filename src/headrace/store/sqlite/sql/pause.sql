-- name: pause
-- Of two pauses the first one says by whom and since when, the last one until when; one that is over (?4: now) is none.
insert into headrace_pause (kind, name, by, since, until) values (?1, ?2, ?3, ?4, ?5)
on conflict (kind, name) do update set
    by = iif(until <= excluded.since, excluded.by, by),
    since = iif(until <= excluded.since, excluded.since, since),
    until = excluded.until;

-- name: resume
delete from headrace_pause where kind = ? and name = ?;

-- name: all
-- Everything that is paused now, by kind and name.
select kind, name, by, since, until from headrace_pause where until is null or until > ? order by kind, name;

-- name: one
select by, since, until from headrace_pause where kind = ? and name = ? and (until is null or until > ?);

-- name: holding
-- What keeps jobs from being claimed: (kind, name, until).
select kind, name, until from headrace_pause where kind in ('queue', 'tenant') and (until is null or until > ?);
